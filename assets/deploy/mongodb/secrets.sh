#!/usr/bin/env bash
# Makes the secrets of a MongoDB replica set with TLS, and those of a run that uses it:
#
#   ./secrets.sh [--out DIR] [--run NAME] MEMBER [MEMBER ...]
#
# MEMBER is the name or the address by which members and hosts of the run reach a machine. Existing files are kept, so the
# same command makes the missing ones for another member or run; to renew a certificate, remove its file first.
#
#   DIR/authority.key        signs certificates: keep it off the members
#   DIR/MEMBER/              goes to that machine: mongod.pem, authority.pem, keyfile, admin-password
#   DIR/runs/NAME.pem        key and certificate of the run, which is the user CN=NAME,O=agentrl-runs
#   DIR/runs/NAME.mongo-url  for `mongo.url: file:...` on the host of the coordinator; the other hosts get it from there
set -euo pipefail
umask 077

out=secrets run=""
while [[ ${1:-} == --* ]]; do
    case $1 in
    --out) out=${2:?a directory} ;;
    --run) run=${2:?the name of a run} ;;
    *)
        echo "There is no option $1: ./secrets.sh [--out DIR] [--run NAME] MEMBER ..." >&2
        exit 64
        ;;
    esac
    shift 2
done
if (($# == 0)); then
    echo "Name the members: ./secrets.sh [--out DIR] [--run NAME] MEMBER ..." >&2
    exit 64
fi
mkdir -p "$out/runs"
out=$(cd "$out" && pwd)

curve=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
[ -e "$out/authority.key" ] ||
    openssl req -x509 "${curve[@]}" -days 3650 -subj "/O=agentrl-mongodb/CN=authority" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout "$out/authority.key" -out "$out/authority.pem" 2> /dev/null
[ -e "$out/keyfile" ] || openssl rand -base64 741 > "$out/keyfile"
[ -e "$out/admin-password" ] || openssl rand -hex 24 > "$out/admin-password"

# issue FILE SUBJECT EXTENSIONS: a key and its certificate in one file, as mongod and its clients need them.
issue() {
    local work
    [ ! -e "$1" ] || return 0
    work=$(mktemp -d)
    openssl req -new "${curve[@]}" -subj "$2" -keyout "$work/key" -out "$work/request" 2> /dev/null
    openssl x509 -req -in "$work/request" -CA "$out/authority.pem" -CAkey "$out/authority.key" \
        -set_serial "0x$(openssl rand -hex 16)" -days 825 -extfile <(printf '%s\n' "$3") -out "$work/certificate" 2> /dev/null
    cat "$work/key" "$work/certificate" > "$work/both"
    mv "$work/both" "$1"
    rm -r "$work"
}

for member in "$@"; do
    kind=DNS
    [[ $member =~ ^[0-9.]+$ || $member == *:* ]] && kind=IP
    mkdir -p "$out/$member"
    issue "$out/$member/mongod.pem" "/O=agentrl-members/CN=$member" \
        "subjectAltName=$kind:$member,DNS:localhost,IP:127.0.0.1
extendedKeyUsage=serverAuth,clientAuth"
    cp "$out/authority.pem" "$out/keyfile" "$out/admin-password" "$out/$member/"
    echo "$out/$member goes to $member, as secrets/$member beside compose.yaml."
done

[ -n "$run" ] || exit 0
if ! [[ $run =~ ^[a-z0-9][a-z0-9-]{0,39}$ ]]; then
    echo "$run is no name of a run: use 1 to 40 small letters, digits and dashes." >&2
    exit 64
fi
issue "$out/runs/$run.pem" "/O=agentrl-runs/CN=$run" "extendedKeyUsage=clientAuth"
cp "$out/authority.pem" "$out/runs/authority.pem"
members=$(IFS=, && echo "$*")
query="replicaSet=rs0&authSource=\$external&authMechanism=MONGODB-X509"
query+="&tls=true&tlsCAFile=$out/runs/authority.pem&tlsCertificateKeyFile=$out/runs/$run.pem"
echo "mongodb://$members/?$query" > "$out/runs/$run.mongo-url"
echo "$out/runs/$run.mongo-url is for the run file: mongo: {url: \"file:$out/runs/$run.mongo-url\"}"
