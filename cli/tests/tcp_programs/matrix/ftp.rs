//! FTP: a server whose processes are in other roots, namespaces and users, and get their data connections from a privileged one.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use crate::matrix::arrangements::{Arrangement, compare};
use crate::matrix::http;
use crate::matrix::transcript::Transcript;

const VSFTPD: &str = "/usr/sbin/vsftpd";
const CURL: &str = "/usr/bin/curl";
const PORT: u16 = 2121;
const DATE: &str = "2001-01-01T00:00:00";

fn session(site: &Arrangement, transcript: &mut Transcript) {
    for name in ["root", "root/up", "empty"] {
        fs::create_dir(site.file(name)).unwrap();
    }
    fs::set_permissions(site.file("root/up"), Permissions::from_mode(0o777)).unwrap();
    site.write("root/large", http::body(5_000_000));
    let dated =
        std::process::Command::new("touch").args(["-d", DATE, &site.file("root/large")]).status();
    assert!(dated.unwrap().success());
    // Its own sandbox kills it with newer C libraries, over Linux as well.
    let config = format!(
        "listen=YES\nlisten_address={}\nlisten_port={PORT}\nbackground=NO\nanonymous_enable=YES\nanon_root={}\n\
         anon_upload_enable=YES\nwrite_enable=YES\nsecure_chroot_dir={}\nconnect_from_port_20=YES\n\
         ftp_data_port=2020\nseccomp_sandbox=NO\nisolate=YES\nisolate_network=YES\n",
        site.ip(),
        site.file("root"),
        site.file("empty")
    );
    let _server = site.serve(PORT, &[VSFTPD, &site.write("vsftpd.conf", config)]);
    let url = |name: &str| format!("ftp://{}:{PORT}/{name}", site.ip());
    let ways: [(&str, &[&str]); 3] =
        [("extended", &[]), ("passive", &["--disable-epsv"]), ("active", &["-P", "-"])];
    for (name, way) in ways {
        let mut curl = |words: &[&str]| {
            site.record(transcript, &mut site.client(&[&[CURL, "-sS"], way, words].concat()));
        };
        curl(&["-l", &url("")]);
        curl(&["-I", &url("large")]);
        curl(&["-o", &site.file(name), &url("large")]);
        site.same("root/large", name);
        curl(&["-T", &site.file("root/large"), &url(&format!("up/{name}"))]);
        site.same("root/large", &format!("root/up/{name}"));
        curl(&["-r", "1000000-1000099", "-o", &site.file("part"), &url("large")]);
        assert!(
            fs::read(site.file("part")).unwrap() == http::body(5_000_000)[1_000_000..1_000_100]
        );
        curl(&[&url("nothing")]);
    }
}

#[test]
fn ftp_behaves_over_an_agent_as_over_linux() {
    compare(&[(VSFTPD, "vsftpd"), (CURL, "curl")], session);
}
