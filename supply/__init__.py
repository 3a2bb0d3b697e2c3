"""What a release is made of: licences, known vulnerabilities, an SBOM, and what must hold before a version is tagged.

Tools for maintainers (docs/release.md); not part of the wheel. ``rules.toml`` holds all that a person decides here.
"""
