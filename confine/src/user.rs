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
            let pair = uid.parse().ok().zip(gid.parse().ok());
            let (uid, gid) =
                pair.ok_or_else(|| format!("`{text}` is not UID:GID (two numbers)"))?;
            return Ok(User { uid, gid });
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        find(&users, text).ok_or_else(|| {
            format!("/etc/passwd has no user `{text}`; write UID:GID (two numbers) for a user that it does not list")
        })
    }
}

/// Finds a user's line by name or number.
fn find(users: &str, wanted: &str) -> Option<User> {
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, ..] = fields[..] else { return None };
        let is_it = name == wanted || uid == wanted;
        is_it.then(|| Some(User { uid: uid.parse().ok()?, gid: gid.parse().ok()? })).flatten()
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
        assert!("7:".parse::<User>().unwrap_err().contains("UID:GID"));
        assert!("no such user".parse::<User>().unwrap_err().contains("/etc/passwd"));
    }
}
