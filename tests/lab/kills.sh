# Kills $DAEMON at each of $MOMENTS of a move between the first two of $GUESTS (namespaces, with $ADDRESSES),
# lets it start again with the configuration GUEST.toml, and looks whether all is whole. Runs on a lab's
# host; a line for each moment; ends at the first that is not.
cd "$DIRECTORY"
set -- $GUESTS
first=$1 second=$2

fail() {
    echo "FAILED $*"
    tail -n 20 log || true
    tail -n 5 state/journal || true
    bridge fdb show dev pf1 || true
    ip link show pf1
    kill -9 $daemon 2>/dev/null || true
    exit 0
}

wait_for() {
    for i in $(seq 1800); do
        eval "$1" && return
        sleep 0.1
    done
    fail "after ${moment:-the start}: waited for $1"
}

on_vf() {
    ip netns exec "$1" sed -n 's/^Currently Active Slave: //p' /proc/net/bonding/eth0 | grep -q pw-vf
}

journalled() {
    tail -n 1 state/journal | grep -q '"entry":"end"\|"entry":"checkpoint"'
}

reaches() {
    ip netns exec "$1" ping -n -q -c 1 -W 2 "$2" >/dev/null ||
        ip netns exec "$1" ping -n -q -c 5 -W 10 "$2" >/dev/null
}

virtfn=$(basename "$(readlink /sys/class/net/pf1/device/virtfn0)")
want=$first other=$second daemon=
for moment in "" $MOMENTS; do
    if [ -n "$moment" ]; then
        PLANEWISE_TEST_KILL_AT=$moment $DAEMON daemon --config $want.toml 2>log &
        wait $! || true
        grep -q "killed at $moment" log || fail "never at $moment"
    fi
    rm -f socket
    $DAEMON daemon --config $want.toml 2>log &
    daemon=$!
    wait_for "[ -S socket ] && on_vf $want && journalled"
    kill -TERM $daemon
    wait $daemon || fail "after ${moment:-the start}: the daemon ended with $?"

    in_guests=$(for n in $GUESTS; do ip -n $n -o link show; done | grep -c ' pw-vf[:@]')
    at_home=$(ls "/sys/bus/pci/devices/$virtfn/net" 2>/dev/null | wc -l)
    twice=$(for n in $first $second; do ip -n $n -o link show | grep -v ': eth0:'; done |
        grep -o 'ether [0-9a-f:]*' | sort | uniq -d | wc -l)
    has=$(ip link show pf1 | sed -n 's/.*vf 0 .*ether \([0-9a-f:]*\) .*/\1/p')
    wanted=$(ip netns exec $want cat /sys/class/net/eth0/address)
    found="$in_guests VFs in guests, $at_home at home, $twice addresses twice, VF 0 has $has"
    [ "$found" = "1 VFs in guests, 0 at home, 0 addresses twice, VF 0 has $wanted" ] ||
        fail "after ${moment:-the start}: $found"
    for from in $GUESTS; do
        for to in $ADDRESSES; do
            reaches $from $to || fail "after ${moment:-the start}: $from does not reach $to"
        done
    done
    echo "whole after ${moment:-the start}"
    next=$other other=$want want=$next
done
