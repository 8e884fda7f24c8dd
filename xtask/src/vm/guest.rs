//! The guest's work from its first instruction as process 1 to its last: a shell script for a
//! static busybox, generated for one command.
//!
//! Output leaves through dedicated virtio-serial ports, so it never mixes with the kernel's
//! messages. A third port carries the script's reports, a line each: `start`, then `exit CODE`; or
//! `fail REASON`. The guest stays up until it is told to power off, so that no output is lost on
//! the way.

use std::ffi::OsStr;
use std::path::Path;

use super::machine::Wanted;

/// Port of the script's reports, as the guest finds it.
pub const PORT_CONTROL: &str = "wave.control";
/// The command's standard output.
pub const PORT_OUT: &str = "wave.out";
/// The command's standard error.
pub const PORT_ERR: &str = "wave.err";
/// The virtiofs tag of this machine's root.
pub const SHARE_TAG: &str = "host-root";

/// Modules that the disk at /var/tmp needs.
pub const MODULES_OF_DISK: [&str; 2] = ["virtio_blk", "ext4"];

/// Variables that are passed on to the command: search paths and settings of output. The rest stays
/// here, because the script is a file and the environment may hold secrets.
const HANDED_ON: &[&str] = &["PATH", "HOME", "USER", "LANG", "TERM", "TZ"];
const HANDED_ON_PREFIXES: &[&str] = &["RUST_", "WAVE_", "LC_"];

/// The script that mounts the command's root.
pub fn first_script(wanted: &Wanted, modules: &[&str], here: &Path) -> String {
    let load: String = modules
        .iter()
        .map(|name| format!("insmod /modules/{name}.ko || fail \"module {name} does not load\"\n"))
        .collect();
    let copy: String = wanted
        .copied
        .iter()
        .map(|copied| {
            let from = quoted(here.join(&copied.from).as_os_str());
            let to = copied.to.as_ref().unwrap_or(&copied.from);
            let to = quoted(here.join(to).as_os_str());
            format!(
                "mkdir -p \"/new$(dirname {to})\" && cp -a /host{from} /new{to} ||\n\
                 fail copying {from} to {to} failed\n"
            )
        })
        .collect();
    let disk = match wanted.disk_mib {
        0 => "",
        _ => {
            "mkdir -p /new/var/tmp && mount -t ext4 /dev/vda /new/var/tmp || fail the disk cannot be mounted\n\
             chmod 1777 /new/var/tmp"
        }
    };
    format!(
        r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
exec </dev/null >/dev/console 2>&1
mount -t proc proc /proc
mount -t sysfs sys /sys
for port in /sys/class/virtio-ports/*; do
    device=/dev/${{port##*/}}
    case $(cat $port/name) in
    {PORT_CONTROL}) exec 3<>$device ;;
    {PORT_OUT}) exec 4>$device ;;
    {PORT_ERR}) exec 5>$device ;;
    esac
done
fail() {{
    echo "fail $*" >&3
    read -r _ <&3
    poweroff -f
}}
{load}
mount -t virtiofs -o ro {SHARE_TAG} /host || fail the files of the host cannot be had
mount -t tmpfs tmpfs /own
mkdir /own/upper /own/work
mount -t overlay -o lowerdir=/host,upperdir=/own/upper,workdir=/own/work root /new ||
    fail there is no overlay over the files of the host
{disk}
{copy}
for name in dev proc sys; do
    mount --move /$name /new/$name
done
mount -t tmpfs -o mode=755 run /new/run
mkdir -p -m 700 /new/run/wave
mkdir -p /new/run/lock /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
ln -sf /proc/self/fd /new/dev/fd
ln -sf fd/0 /new/dev/stdin
ln -sf fd/1 /new/dev/stdout
ln -sf fd/2 /new/dev/stderr
mount -t bpf bpf /new/sys/fs/bpf
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
mount -t debugfs debugfs /new/sys/kernel/debug
mount -t tracefs tracefs /new/sys/kernel/tracing
ip link set lo up
hostname wave-vm
cp /bin/busybox /second /new/run/wave/
exec switch_root /new /run/wave/second
"#
    )
}

/// The script that runs the command in its root, and reports how it ended.
///
/// The command writes to pipes, because a program may open a pipe anew as `/dev/stdout`, but not a
/// port. All processes that it left are killed, so that the pipes end; then the end marks are sent.
pub fn second_script(command: &[String], here: &Path, end_mark: &str) -> String {
    let exports: String = std::env::vars_os()
        .filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let wanted = HANDED_ON.contains(&name.as_str())
                || HANDED_ON_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            wanted.then(|| format!("export {name}={}\n", quoted(&value)))
        })
        .collect();
    let here = quoted(here.as_os_str());
    let command: Vec<String> = command.iter().map(|word| quoted(OsStr::new(word))).collect();
    let command = command.join(" ");
    format!(
        r#"#!/run/wave/busybox sh
box=/run/wave/busybox
$box mkfifo /run/wave/out /run/wave/err
$box cat /run/wave/out >&4 3>&- 5>&- &
out=$!
$box cat /run/wave/err >&5 3>&- 4>&- &
err=$!
echo start >&3
(
    exec </dev/null >/run/wave/out 2>/run/wave/err 3>&- 4>&- 5>&-
{exports}cd {here} || exit 126
# By the host's shell: busybox's would take commands of its own for the host's.
exec /bin/sh -c 'exec "$@"' sh {command}
)
code=$?
for process in /proc/[0-9]*; do
    process=${{process#/proc/}}
    case $process in
    1 | $out | $err) ;;
    *) kill -9 $process 2>/dev/null ;;
    esac
done
wait $out $err
printf '\000%s' {end_mark} >&4
printf '\000%s' {end_mark} >&5
echo "exit $code" >&3
read -r _ <&3
$box poweroff -f
"#
    )
}

/// A word, quoted so that the shell takes it literally.
fn quoted(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn words_reach_the_command_unchanged() {
        let words = ["it's", "$HOME", "a b", "", "\\"];
        let script: Vec<String> = words.iter().map(|word| quoted(OsStr::new(word))).collect();
        let printed = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s|' {}", script.join(" "))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&printed.stdout), "it's|$HOME|a b||\\|");
    }
}
