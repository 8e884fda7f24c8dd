//! rsync: a daemon that confines itself with chroot(2), and whose receiver is two processes with one connection.

use std::fs;

use crate::matrix::arrangements::{Arrangement, compare};
use crate::matrix::http;
use crate::matrix::transcript::Transcript;

const RSYNC: &str = "/usr/bin/rsync";
const PORT: u16 = 8730;

fn session(site: &Arrangement, transcript: &mut Transcript) {
    let folders = ["module", "tree", "tree/folder"];
    folders.iter().for_each(|name| fs::create_dir(site.file(name)).unwrap());
    let config = format!(
        "use chroot = yes\nuid = root\ngid = root\naddress = {}\nport = {PORT}\nreverse lookup = no\n\
         lock file = {}\nlog file = {}\n[module]\npath = {}\nread only = no\n",
        site.ip(),
        site.file("lock"),
        site.file("log"),
        site.file("module")
    );
    let config = format!("--config={}", site.write("rsyncd.conf", config));
    let _server = site.serve(PORT, &[RSYNC, "--daemon", "--no-detach", &config]);

    let module = format!("rsync://{}:{PORT}/module/", site.ip());
    let files = ["large", "small", "folder/other"];
    let same = |folder: &str| {
        files
            .iter()
            .for_each(|name| site.same(&format!("tree/{name}"), &format!("{folder}/{name}")));
    };
    site.write("tree/large", http::body(5_000_000));
    site.write("tree/small", "small\n");
    site.write("tree/folder/other", http::body(100_000));
    let copy = |from: &str, to: &str| {
        site.client(&[RSYNC, "-rl", "--ignore-times", "--out-format=%n %l", "--delete", from, to])
    };
    site.record(transcript, &mut copy(&site.file("tree/"), &module));
    same("module");
    site.record(transcript, &mut copy(&module, &site.file("back/")));
    same("back");
    // A change in both directions, of which only a part is sent.
    let mut changed = http::body(5_000_000);
    changed[1_000_000..1_000_100].fill(7);
    site.write("tree/large", &changed);
    let differs = ["--no-whole-file"];
    site.record(transcript, copy(&site.file("tree/"), &module).args(differs));
    same("module");
    changed.truncate(4_000_000);
    site.write("module/large", &changed);
    fs::remove_file(site.file("module/small")).unwrap();
    site.record(transcript, copy(&module, &site.file("tree/")).args(differs));
    site.same("module/large", "tree/large");
    site.record(
        transcript,
        &mut site.client(&[RSYNC, "--no-motd", module.strip_suffix("module/").unwrap()]),
    );
    site.record(transcript, &mut site.client(&[RSYNC, &format!("{module}nothing")]));
}

#[test]
fn rsync_behaves_over_an_agent_as_over_linux() {
    compare(&[(RSYNC, "rsync")], session);
}
