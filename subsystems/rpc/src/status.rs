//! The outcome of a call: gRPC's status codes, and the text and details that go with them.

/// gRPC's status codes (grpc/doc/statuscodes.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "gRPC's document says what each means")]
pub enum Code {
    #[default]
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// Every code, in the order of the numbers.
    pub const ALL: [Code; 17] = [
        Code::Ok,
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// The code with this number; UNKNOWN if the number is no code, as in gRPC's clients.
    pub fn from_number(number: i32) -> Code {
        usize::try_from(number)
            .ok()
            .and_then(|at| Code::ALL.get(at))
            .copied()
            .unwrap_or(Code::Unknown)
    }
}

/// A call's status, without its trailers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// gRPC's code of the status.
    pub code: Code,
    /// Text for people, in UTF-8; the front percent-encodes it.
    pub message: alloc::string::String,
}

impl Status {
    /// A status with a message for people.
    pub fn new(code: Code, message: impl Into<alloc::string::String>) -> Status {
        Status { code, message: message.into() }
    }

    /// OK, with an empty message.
    pub const fn ok() -> Status {
        Status { code: Code::Ok, message: alloc::string::String::new() }
    }
}
