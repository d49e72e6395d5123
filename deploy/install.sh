#!/bin/sh
# Installs Python packages into an image (deploy/Containerfile): /mnt/install.sh PACKAGE...
set -eu
# --compile: nobody can write bytecode later.
/mnt/build/bin/pip --python /opt/moa/bin/python install --quiet --compile --no-cache-dir \
    --constraint /mnt/constraints.txt "$@"
# The bill of materials, every Python package with version and licence.
/mnt/build/bin/cyclonedx-py environment --output-reproducible --output-file /opt/moa/sbom.json /opt/moa/bin/python
