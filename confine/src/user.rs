//! The user that a process becomes.

use std::fmt;
use std::fs;
use std::str::FromStr;

/// The only user and the only group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The numeric user id.
    pub uid: u32,
    /// The numeric group id.
    pub gid: u32,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for User {
    type Err = String;

    /// Parses a name or a number from /etc/passwd, or `UID:GID`.
    fn from_str(text: &str) -> Result<User, String> {
        if let Some((uid, gid)) = text.split_once(':') {
            let pair = id(uid).zip(id(gid));
            let (uid, gid) = pair.ok_or_else(|| {
                format!("`{text}` is not UID:GID (two numbers of at most {})", u32::MAX - 1)
            })?;
            return Ok(User { uid, gid });
        }
        // The other fields may be any bytes.
        let users = fs::read("/etc/passwd").unwrap_or_default();
        find(&String::from_utf8_lossy(&users), text).ok_or_else(|| {
            format!("/etc/passwd has no user `{text}`; write UID:GID (two numbers) for a user that it does not list")
        })
    }
}

/// Parses an id. To setresuid(2) and setresgid(2), -1 means that an id stays.
fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

/// Finds a user's line by name or number.
fn find(users: &str, wanted: &str) -> Option<User> {
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, ..] = fields[..] else { return None };
        let is_it = name == wanted || uid == wanted;
        is_it.then(|| Some(User { uid: id(uid)?, gid: id(gid)? })).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_parses_from_name_number_or_pair() {
        let users = "root:x:0:0:root:/root:/bin/sh\nwave:x:990:991::/:/bin/false\nbroken\n";
        assert_eq!(find(users, "wave"), Some(User { uid: 990, gid: 991 }));
        assert_eq!(find(users, "990"), Some(User { uid: 990, gid: 991 }));
        assert_eq!(find(users, "nobody-there"), None);
        assert_eq!("7:8".parse(), Ok(User { uid: 7, gid: 8 }));
        for stays in ["7:4294967295", "4294967295:8"] {
            assert!(stays.parse::<User>().unwrap_err().contains("at most 4294967294"), "{stays}");
        }
        assert!("7:".parse::<User>().unwrap_err().contains("UID:GID"));
        assert!("no such user".parse::<User>().unwrap_err().contains("/etc/passwd"));
    }
}
