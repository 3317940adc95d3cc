# shellcheck shell=bash
# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Which capabilities this host withholds from every process. Inside some virtual
# machines and containers the bounding set lacks a few, and then nothing
# privileged can start in a container. It is sourced by engine.sh and node-image.sh.

# In the order of the kernel's numbers, from 0 (include/uapi/linux/capability.h).
CAPABILITY_NAMES=(
  CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
  LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK
  IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
  SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
  AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND
  AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
)

# missing_capabilities: the names, as CAP_..., one a line, that the kernel knows
# and the bounding set of this process lacks. Prints nothing where all are there.
missing_capabilities() {
  local bounding last number
  bounding=$(awk '$1 == "CapBnd:" { print $2 }' /proc/self/status)
  last=$(</proc/sys/kernel/cap_last_cap)
  for ((number = 0; number <= last && number < ${#CAPABILITY_NAMES[@]}; number++)); do
    (((16#$bounding >> number) & 1)) || printf 'CAP_%s\n' "${CAPABILITY_NAMES[number]}"
  done
}
