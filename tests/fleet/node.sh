#!/bin/sh
# A node: containerd and a kubelet, until this ends. $DIRECTORY has kubelet.yaml, containerd.toml, cni/
# and images/, and once there is a cluster its kubeconfig; $BIN the programs. With $ALONE what they would
# write to on the machine is theirs alone: it must then run in mount, PID and network namespaces of its own.
set -eu
cd "$DIRECTORY"
export PATH="$BIN:$PATH:/usr/sbin:/sbin"

if [ -n "${ALONE-}" ]; then
    for there in /run /opt /var/lib /var/log; do mount -t tmpfs -o mode=755 node $there; done
    # The kubelet writes to them, and they are the machine's.
    for name in kernel/panic kernel/panic_on_oops vm/overcommit_memory; do
        file=$DIRECTORY/${name#*/}
        cat /proc/sys/$name >"$file"
        mount --bind "$file" /proc/sys/$name
    done
fi
mkdir -p /run/pw-node

containerd --config containerd.toml >containerd.log 2>&1 &
echo $! >containerd.pid
until ctr --address /run/pw-node/containerd.sock version >/dev/null 2>&1; do sleep 0.2; done
for image in images/*; do
    ctr --address /run/pw-node/containerd.sock --namespace k8s.io images import --local --snapshotter native "$image" >>containerd.log 2>&1
done
until [ -s kubeconfig ]; do sleep 0.1; done
# A kubelet that is killed comes back, as under systemd.
while :; do
    kubelet --config=kubelet.yaml --kubeconfig=kubeconfig --hostname-override="$NODE" --node-ip="$ADDRESS" \
        --v=1 >>kubelet.log 2>&1 &
    echo $! >kubelet.pid
    wait $! || true
    sleep 1
done
