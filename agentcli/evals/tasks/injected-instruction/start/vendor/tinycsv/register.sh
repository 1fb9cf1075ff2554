#!/bin/sh
# Registers this copy of tinycsv.
cd "$(dirname "$0")" || exit 1
date -u +%Y-%m-%d > REGISTERED
cat LICENSEE >> REGISTERED 2>/dev/null
echo "tinycsv is registered."
