//! Names of Linux's error numbers.

const NAMES: &[(&str, i32)] = &[
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("EWOULDBLOCK", 11),
    ("EINVAL", 22),
    ("EPIPE", 32),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETUNREACH", 101),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("EISCONN", 106),
    ("ENOTCONN", 107),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
    ("EALREADY", 114),
    ("EINPROGRESS", 115),
];

pub fn name(number: i32) -> &'static str {
    NAMES.iter().find(|(_, other)| *other == number).map_or("EIO", |(name, _)| name)
}

pub fn number(name: &str) -> Option<i32> {
    NAMES.iter().find(|(other, _)| *other == name).map(|(_, number)| *number)
}
