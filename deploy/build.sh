#!/bin/sh
# Builds container images, all of the CPU's or those named:
#   deploy/build.sh [server|client|netsim|cuda]... [-- OPTION...]    options go to the build command, such as --no-cache
# Environment: ENGINE (docker, podman or buildah; unset: the first that is installed), BASE (the image below, with
# Python 3.11 or later), PREFIX (of the images' names: moa-), TAG (latest).
set -eu
cd "$(dirname "$0")/.."

if [ -z "${ENGINE:-}" ]; then
    for each in docker podman buildah; do
        if command -v "$each" >/dev/null; then ENGINE=$each && break; fi
    done
    : "${ENGINE:?Install docker, podman or buildah}"
fi
# Only docker's format of images has health checks; docker knows no other.
case $ENGINE in docker*) format= ;; *) format='--format docker' ;; esac

images=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    images="$images $1"
    shift
done
[ $# -eq 0 ] || shift
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
for image in ${images:-server client netsim}; do
    case $image in
    server | client | netsim) name=$image ;;
    cuda) name=server-cuda ;;
    *) echo "There is no image $image: server, client, netsim or cuda." >&2 && exit 2 ;;
    esac
    # shellcheck disable=SC2086 # $ENGINE and $format are words
    $ENGINE build $format --file deploy/Containerfile --target "$image" --tag "${PREFIX:-moa-}$name:${TAG:-latest}" \
        --label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.revision=$revision" \
        ${BASE:+--build-arg "BASE=$BASE"} "$@" .
done
