//! Matrix row for PostgreSQL, which has a process per connection.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::forks::POSTGRES;
use crate::matrix::transcript::mask_digits;
use crate::matrix::{Program, Site, Turn, USUAL, run};
use crate::network::within_patience;

pub(super) const POSTGRESQL: Program = Program {
    path: POSTGRES,
    package: "postgresql-15",
    user: Some("postgres"),
    port: 5432,
    prepare: |site| {
        let (folder, data) = (site.folder.to_str().unwrap(), site.file("data"));
        assert!(Command::new("chown").args(["postgres", folder]).status().unwrap().success());
        let initdb = POSTGRES.replace("bin/postgres", "bin/initdb");
        let mut made = Command::new("setpriv");
        made.args(["--reuid=postgres", "--regid=postgres", "--init-groups", &initdb]);
        made.args(["-D", &data, "-A", "trust", "-N", "--locale=C"]).current_dir(folder);
        let made = made.stdin(Stdio::null()).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::write(site.folder.join("data/pg_hba.conf"), "host all all 10.77.0.0/24 trust\n")
            .unwrap();
        let (ip, most) = (site.ip().to_string(), (site.connections + 20).to_string());
        let most = format!("max_connections={most}");
        let more = ["-c", "fsync=off", "-c", "autovacuum=off", "-c", "timezone=UTC", "-c", &most];
        // A killed server's segments would stay in /dev/shm.
        let own = ["-c", "dynamic_shared_memory_type=mmap"];
        let line = [POSTGRES, "-D", &data, "-h", &ip, "-k", ""];
        line.into_iter().chain(own).chain(more).map(str::to_owned).collect()
    },
    ready: |site| {
        let is_there = || psql(site, "select 1").contains("(1 row)").then_some(());
        within_patience("a database that answers", is_there);
    },
    session: |site, transcript| {
        let rows: String = (0..20_000).map(|at| format!("{at}\trow {at}\n")).collect();
        let script = format!(
            "select inet_server_addr(), inet_server_port(), inet_client_addr();\n\
             set client_min_messages = warning; drop table if exists t; reset client_min_messages;\n\
             create table t (at int primary key, text text);\n\
             copy t from stdin;\n{rows}\\.\n\
             select count(*), sum(at), max(text) from t;\n\
             copy (select * from t order by at) to stdout;\n\
             insert into t values (1, 'again');\n\
             select repeat('x', 3000000);\n\
             begin; update t set text = upper(text) where at < 3; select * from t where at < 5 order by at;\n\
             rollback; select * from t where at < 5 order by at;\n\
             prepare p as select $1::int + $2::int; execute p(1, 2);\n\
             listen here; notify here, 'hello';\n\
             select nonsense;\n\
             do $$ begin raise notice 'noticed'; end $$;\n\
             select pg_sleep(0.01);\n\
             \\conninfo\n"
        );
        transcript.add("psql", &mask_digits(psql(site, &script).as_bytes(), "with PID "));
    },
    exchange: |_, stream, turn| {
        let Turn { connection, round } = turn;
        if round == 0 {
            let mut startup = 196_608_u32.to_be_bytes().to_vec();
            startup.extend(b"user\0postgres\0database\0postgres\0\0");
            stream.write_all(&(startup.len() as u32 + 4).to_be_bytes())?;
            stream.write_all(&startup)?;
            until_ready(stream)?;
        }
        let query = format!("select 'answer {connection} of {round}'\0");
        let mut message = b"Q".to_vec();
        message.extend((query.len() as u32 + 4).to_be_bytes());
        message.extend(query.bytes());
        stream.write_all(&message)?;
        let said = until_ready(stream)?;
        assert!(said.contains(&format!("answer {connection} of {round}")), "{said}");
        Ok(())
    },
    ..USUAL
};

/// Reads messages until the server waits for a query.
fn until_ready(stream: &mut TcpStream) -> io::Result<String> {
    let mut all = String::new();
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; length as usize - 4];
        stream.read_exact(&mut body)?;
        all += &String::from_utf8_lossy(&body);
        match head[0] {
            b'Z' => return Ok(all),
            b'E' => return Err(io::Error::other(all)),
            _ => {}
        }
    }
}

/// Output of psql for a script.
fn psql(site: &Site, script: &str) -> String {
    let (ip, port) = (site.ip().to_string(), site.port.to_string());
    let mut psql = Command::new("psql");
    psql.args(["-X", "-h", &ip, "-p", &port, "-U", "postgres", "-f", "-", "postgres"]);
    psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut psql = psql.spawn().unwrap();
    let mut stdin = psql.stdin.take().unwrap();
    let script = script.to_owned();
    // psql ends early if there is no server.
    let writes = std::thread::spawn(move || stdin.write_all(script.as_bytes()));
    let output = psql.wait_with_output().unwrap();
    let _ = writes.join().unwrap();
    let [said, errors] =
        [output.stdout, output.stderr].map(|said| String::from_utf8(said).unwrap());
    said + &errors
}

#[test]
fn postgresql_behaves_over_an_agent_as_over_linux() {
    run(&POSTGRESQL);
}
