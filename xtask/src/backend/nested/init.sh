#!/bin/busybox sh
# Process 1 of the first-level machine: load KVM, run one guest under it, report, power off.
# What it is given: /modules/order (module files, in loading order), /args (QEMU's arguments, one a line).
# What it prints besides the guest's own lines: "l1 ready", "kvm name=value ..." (the guest's last sampled
# counters), "# qemu: ..." (QEMU's own messages), "guest exit=N".

export PATH=/usr/bin:/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t debugfs debugfs /sys/kernel/debug
busybox stty -opost <&1

finish() {
    echo "$1"
    busybox poweroff -f
    exec busybox sleep 60
}

while read -r module; do
    busybox insmod "/modules/$module" || finish "l1 error=\"$module does not load\""
done </modules/order
[ -c /dev/kvm ] || finish 'l1 error="KVM did not come up, so this QEMU does not emulate SVM"'
echo "l1 ready"

# One argument a line, taken as it stands: no other splitting, no file name patterns.
IFS='
'
set -f
set -- $(busybox cat /args)
set +f
unset IFS
qemu-system-x86_64 -L /firmware "$@" </dev/null 2>/qemu.err &
qemu=$!

# A clock that costs no new process: reading with a time limit from a pipe in which nothing ever comes.
busybox mkfifo /tick
exec 3<>/tick
kvm=
while read -r state 2>/dev/null <"/proc/$qemu/stat"; do
    # An ended child stays there as a zombie until it is waited for.
    case $state in *") Z "*) break ;; esac
    for dir in /sys/kernel/debug/kvm/"$qemu"-*; do
        [ -r "$dir/exits" ] || continue
        line=
        for name in directed_yield_attempted directed_yield_successful hypercalls halt_exits exits preemption_reported tlb_flush; do
            value=
            # A statistic this kernel does not have, or a guest that has just gone.
            read -r value 2>/dev/null <"$dir/$name" || continue 2
            line="$line $name=$value"
        done
        kvm=$line
    done
    read -r -t 0.15 _ <&3
done
wait "$qemu"
code=$?
[ -n "$kvm" ] && echo "kvm$kvm"
while read -r line; do echo "# qemu: $line"; done </qemu.err
finish "guest exit=$code"
