//! git: a daemon, and a CGI program behind a web server. Its processes give connections to each other.

use std::process::Command;

use crate::matrix::arrangements::{Arrangement, compare};
use crate::matrix::http;
use crate::matrix::transcript::Transcript;

const GIT: &str = "/usr/bin/git";
const BACKEND: &str = "/usr/lib/git-core/git-http-backend";
const LIGHTTPD: &str = "/usr/sbin/lighttpd";
const PORT: u16 = 9418;

/// git's environment: no configuration but the test's, and dates that make all hashes equal.
fn environment(site: &Arrangement, command: &mut Command) {
    let config = "[user]\nname = n\nemail = n@example.com\n[init]\ndefaultBranch = main\n[safe]\ndirectory = *\n";
    let config = site.write("gitconfig", config);
    command.envs([("GIT_CONFIG_GLOBAL", config.as_str()), ("GIT_CONFIG_NOSYSTEM", "1")]);
    let date = "2001-01-01T00:00:00Z";
    command.envs([("GIT_AUTHOR_DATE", date), ("GIT_COMMITTER_DATE", date), ("LC_ALL", "C")]);
}

/// Runs git without a connection.
fn locally(site: &Arrangement, words: &[&str]) {
    let mut command = Command::new(GIT);
    command.args(words).current_dir(site.file(""));
    environment(site, &mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

fn commit(site: &Arrangement, folder: &str, name: &str, bytes: usize) {
    site.write(&format!("{folder}/{name}"), http::body(bytes));
    locally(site, &["-C", folder, "add", name]);
    locally(site, &["-C", folder, "commit", "-q", "-m", name]);
}

/// A repository with a commit of 5 MB, that may be pushed to.
fn repository(site: &Arrangement) {
    locally(site, &["init", "-q", "--bare", "served/r.git"]);
    locally(site, &["-C", "served/r.git", "config", "http.receivepack", "true"]);
    locally(site, &["init", "-q", "work"]);
    commit(site, "work", "large", 5_000_000);
    locally(site, &["-C", "work", "push", "-q", &site.file("served/r.git"), "main"]);
}

/// Clones, pushes and fetches.
fn use_repository(site: &Arrangement, url: &str, transcript: &mut Transcript) {
    let git = |transcript: &mut Transcript, words: &[&str]| {
        let mut command = site.client(&[&[GIT], words].concat());
        environment(site, &mut command);
        site.record(transcript, &mut command);
    };
    git(transcript, &["clone", "-q", url, "clone"]);
    site.same("work/large", "clone/large");
    commit(site, "clone", "pushed", 3_000_000);
    git(transcript, &["-C", "clone", "push", "origin", "main"]);
    for at in 0..10 {
        commit(site, "clone", &format!("file{at}"), 1_000 * at + 1);
    }
    git(transcript, &["-C", "clone", "push", "--porcelain", "origin", "main", "main:other"]);
    git(transcript, &["clone", "-q", "--depth", "1", &format!("{url}/"), "shallow"]);
    site.same("clone/pushed", "shallow/pushed");
    git(transcript, &["ls-remote", url]);
    git(transcript, &["clone", "-q", &format!("{url}-missing"), "nothing"]);
    locally(site, &["-C", "served/r.git", "fsck", "--strict"]);
    git(transcript, &["-C", "served/r.git", "log", "--format=%H %s", "main"]);
}

fn daemon(site: &Arrangement, transcript: &mut Transcript) {
    repository(site);
    let (listen, port) = (format!("--listen={}", site.ip()), format!("--port={PORT}"));
    let base = format!("--base-path={}", site.file("served"));
    let words = [
        GIT,
        "daemon",
        "--reuseaddr",
        &listen,
        &port,
        &base,
        "--export-all",
        "--enable=receive-pack",
    ];
    let _server = site.serve(PORT, &words);
    use_repository(site, &format!("git://{}:{PORT}/r.git", site.ip()), transcript);
}

#[test]
fn git_daemon_behaves_over_an_agent_as_over_linux() {
    compare(&[(GIT, "git")], daemon);
}

fn backend(site: &Arrangement, transcript: &mut Transcript) {
    repository(site);
    let config = format!(
        "server.document-root = \"{0}\"\nserver.upload-dirs = (\"{0}\")\nserver.bind = \"{1}\"\nserver.port = {PORT}\n\
         server.modules += (\"mod_cgi\", \"mod_alias\", \"mod_setenv\")\nalias.url = (\"/git\" => \"{BACKEND}\")\n\
         cgi.assign = (\"\" => \"\")\nsetenv.add-environment = (\"GIT_PROJECT_ROOT\" => \"{0}\",\n\
         \"GIT_HTTP_EXPORT_ALL\" => \"\", \"GIT_CONFIG_GLOBAL\" => \"{2}\")\n",
        site.file("served"),
        site.ip(),
        site.file("gitconfig")
    );
    let _server = site.serve(PORT, &[LIGHTTPD, "-D", "-f", &site.write("lighttpd.conf", config)]);
    use_repository(site, &format!("http://{}:{PORT}/git/r.git", site.ip()), transcript);
}

#[test]
fn git_over_http_behaves_over_an_agent_as_over_linux() {
    compare(&[(GIT, "git"), (BACKEND, "git"), (LIGHTTPD, "lighttpd")], backend);
}
