#!/bin/sh
# Starts a server on loopback, a link emulator before it if NETWORK names a profile, and a chat; stops what it started.
# Environment: BIN (where moa-server and moa-client lie), PROMPT, NETWORK, MODEL.
set -eu
BIN=${BIN:-.venv/bin}
work=$(mktemp -d)
server= link=
stop() {
    status=$?
    trap - EXIT INT TERM
    [ -z "$link" ] || kill "$link" 2>/dev/null || true
    [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    rm -rf "$work"
    exit "$status"
}
trap stop EXIT TERM
trap : INT # Ctrl-C belongs to the chat: it stops the answer

# Waits until a process has written its address to a file; prints its log and fails if it ends first.
address_of() { # NAME PID FILE LOG
    while [ ! -s "$3" ]; do
        if ! kill -0 "$2" 2>/dev/null; then
            echo "$1 did not start:" >&2
            cat "$4" >&2
            return 1
        fi
        sleep 0.1
    done
    cat "$3"
}

# Fetching the model shows its progress here, once; the server then starts from the cache.
"$BIN/moa-server" fetch ${MODEL:+"$MODEL"} >/dev/null
setsid "$BIN/moa-server" serve ${MODEL:+"$MODEL"} --port 0 --log-format plain --ready-file "$work/server" >"$work/server.log" 2>&1 &
server=$!
address=$(address_of moa-server "$server" "$work/server" "$work/server.log")
if [ -n "${NETWORK:-}" ]; then
    setsid "$BIN/netsim" proxy --profile "$NETWORK" --listen 127.0.0.1:0 --upstream "$address" \
        --ready-file "$work/link" >"$work/link.log" 2>&1 &
    link=$!
    address=$(address_of netsim "$link" "$work/link" "$work/link.log")
fi
if [ -n "${PROMPT:-}" ]; then
    "$BIN/moa-client" chat --no-daemon --server "$address" -- "$PROMPT"
else
    "$BIN/moa-client" chat --no-daemon --server "$address"
fi
