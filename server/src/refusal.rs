//! Refusals in gRPC's form: a code, a message for people, and details for programs (`google/rpc/error_details.proto`).
//!
//! | code | details |
//! | --- | --- |
//! | any, for a field of the request | `BadRequest` with the field's path |
//! | `RESOURCE_EXHAUSTED` | `QuotaFailure`; its subject is the option that sets the limit, such as `--max-vms` |
//! | `NOT_FOUND`, `ALREADY_EXISTS` | `ResourceInfo`, or `BadRequest` |
//! | `FAILED_PRECONDITION` | `PreconditionFailure`, or `BadRequest` |
//! | others but `INTERNAL` | `ErrorInfo` with a reason |

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of reasons.
const DOMAIN: &str = "vmprobe.v1";

/// A thing that doesn't exist, or that exists already.
#[derive(Clone, Copy, Debug)]
pub enum Resource {
    Vm,
    Breakpoint,
    Debugger,
}

impl Resource {
    /// Returns its type: a message of the protocol, except for the debugger, which is a client.
    fn name(self) -> &'static str {
        match self {
            Self::Vm => "vmprobe.v1.Vm",
            Self::Breakpoint => "vmprobe.v1.Breakpoint",
            Self::Debugger => "vmprobe.v1.DebugService",
        }
    }
}

/// The state that a call needs, and that isn't given.
#[derive(Clone, Copy, Debug)]
pub enum Precondition {
    /// The VM or its guest is in another state.
    State,
    /// The host, or the server's configuration, lacks something.
    Host,
    /// The guest's kernel lacks something.
    Kernel,
}

/// The reason of a refusal, in a word for programs.
#[derive(Clone, Copy, Debug)]
pub enum Reason {
    /// The client has shown neither a certificate nor a token.
    NoCredentials,
    /// No client in the list has this token.
    UnknownToken,
    /// No client in the list has this certificate.
    UnknownCertificate,
    /// The client's role is too low.
    Role,
    /// The VM isn't one of the client's.
    NotYourVm,
    /// The images aren't the client's.
    NotYourImages,
    /// Another stream has resumed this one.
    ResumedElsewhere,
    /// The guest is changing the call's subject: try again.
    GuestBusy,
    /// The time of a call or of an answer is over.
    TimeOver,
    /// The server ends.
    ShuttingDown,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::NoCredentials => "NO_CREDENTIALS",
            Self::UnknownToken => "UNKNOWN_TOKEN",
            Self::UnknownCertificate => "UNKNOWN_CERTIFICATE",
            Self::Role => "ROLE",
            Self::NotYourVm => "NOT_YOUR_VM",
            Self::NotYourImages => "NOT_YOUR_IMAGES",
            Self::ResumedElsewhere => "RESUMED_ELSEWHERE",
            Self::GuestBusy => "GUEST_BUSY",
            Self::TimeOver => "TIME_OVER",
            Self::ShuttingDown => "SHUTTING_DOWN",
        }
    }

    fn code(self) -> Code {
        match self {
            Self::NoCredentials | Self::UnknownToken => Code::Unauthenticated,
            Self::UnknownCertificate | Self::Role | Self::NotYourVm | Self::NotYourImages => {
                Code::PermissionDenied
            }
            Self::ResumedElsewhere | Self::GuestBusy => Code::Aborted,
            Self::TimeOver => Code::DeadlineExceeded,
            Self::ShuttingDown => Code::Unavailable,
        }
    }
}

/// Refuses a wrong value of `field`, a path into the request such as `probes[2].name`.
pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Status {
    with_field(Code::InvalidArgument, field, message)
}

/// Refuses with the path of the field that caused the failure.
pub fn with_field(code: Code, field: impl Into<String>, message: impl Into<String>) -> Status {
    let message = message.into();
    let details = ErrorDetails::with_bad_request_violation(field, message.clone());
    Status::with_error_details(code, message, details)
}

/// Refuses as a limit is reached: that of an option of `vmprobed`, such as `--max-vms`, or one of the host.
pub fn exhausted(limit: &str, message: impl Into<String>) -> Status {
    let message = message.into();
    let details = ErrorDetails::with_quota_failure_violation(limit, message.clone());
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

/// Does as [`exhausted`], where a field's value exceeds the limit.
pub fn exhausted_by(field: &str, limit: &str, message: impl Into<String>) -> Status {
    let message = message.into();
    let mut details = ErrorDetails::with_quota_failure_violation(limit, message.clone());
    details.add_bad_request_violation(field, message.clone());
    Status::with_error_details(Code::ResourceExhausted, message, details)
}

/// Refuses as there is no such thing.
pub fn missing(what: Resource, name: &str, message: impl Into<String>) -> Status {
    about(Code::NotFound, what, name, message.into())
}

/// Refuses as the thing exists already.
pub fn exists(what: Resource, name: &str, message: impl Into<String>) -> Status {
    about(Code::AlreadyExists, what, name, message.into())
}

fn about(code: Code, what: Resource, name: &str, message: String) -> Status {
    let details = ErrorDetails::with_resource_info(what.name(), name, "", message.clone());
    Status::with_error_details(code, message, details)
}

/// Refuses a correct request in the present state of its subject, such as a VM.
pub fn precondition(what: Precondition, subject: &str, message: impl Into<String>) -> Status {
    let what = match what {
        Precondition::State => "STATE",
        Precondition::Host => "HOST",
        Precondition::Kernel => "KERNEL",
    };
    let message = message.into();
    let details = ErrorDetails::with_precondition_failure_violation(what, subject, message.clone());
    Status::with_error_details(Code::FailedPrecondition, message, details)
}

/// Refuses for this reason.
pub fn because(reason: Reason, message: impl Into<String>) -> Status {
    let details = ErrorDetails::with_error_info(reason.name(), DOMAIN, HashMap::new());
    Status::with_error_details(reason.code(), message, details)
}

/// Refuses with a failure that no field has caused.
pub fn without_field(code: Code, message: String) -> Status {
    match code {
        Code::ResourceExhausted => exhausted("host", message),
        Code::FailedPrecondition => precondition(Precondition::Host, "host", message),
        _ => Status::new(code, message),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Ways to make a refusal without details, which only this file may use.
    const WITHOUT_DETAILS: [&str; 13] = [
        "Status::new(",
        "Status::aborted(",
        "Status::already_exists(",
        "Status::deadline_exceeded(",
        "Status::failed_precondition(",
        "Status::invalid_argument(",
        "Status::not_found(",
        "Status::out_of_range(",
        "Status::permission_denied(",
        "Status::resource_exhausted(",
        "Status::unauthenticated(",
        "Status::unavailable(",
        "Status::unimplemented(",
    ];

    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => files(&path, found),
                false => found.push(path),
            }
        }
    }

    #[test]
    fn no_refusal_is_made_without_details_for_programs() {
        let mut found = Vec::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        files(&source, &mut found);
        assert!(found.len() > 90, "{}", found.len());
        for path in found {
            if path.ends_with("refusal.rs") || path.ends_with("tests.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            for (number, line) in (1..).zip(text.lines()) {
                let bare = WITHOUT_DETAILS.iter().find(|way| line.contains(*way));
                assert!(bare.is_none(), "{}:{number}: {line}", path.display());
            }
        }
    }

    #[test]
    fn each_code_has_the_details_that_are_meant_for_it() {
        let quota = exhausted_by("memory_mib", "--max-guest-memory", "too much");
        assert_eq!(quota.code(), Code::ResourceExhausted);
        let details = quota.get_error_details();
        let subjects = details.quota_failure().unwrap();
        assert_eq!(subjects.violations[0].subject, "--max-guest-memory");
        let fields = details.bad_request().unwrap();
        assert_eq!(fields.field_violations[0].field, "memory_mib");

        let gone = missing(Resource::Vm, "web", "no VM is called `web`");
        let info = gone.get_details_resource_info().unwrap();
        assert_eq!((gone.code(), &*info.resource_name), (Code::NotFound, "web"));
        assert_eq!(info.resource_type, "vmprobe.v1.Vm");

        let ended = precondition(Precondition::State, "web", "it has ended");
        let failure = ended.get_details_precondition_failure().unwrap();
        let violation = &failure.violations[0];
        assert_eq!((&*violation.r#type, &*violation.subject), ("STATE", "web"));

        for (reason, code) in [
            (Reason::NoCredentials, Code::Unauthenticated),
            (Reason::Role, Code::PermissionDenied),
            (Reason::GuestBusy, Code::Aborted),
            (Reason::TimeOver, Code::DeadlineExceeded),
            (Reason::ShuttingDown, Code::Unavailable),
        ] {
            let status = because(reason, "why");
            let info = status.get_details_error_info().unwrap();
            assert_eq!((status.code(), &*info.domain), (code, DOMAIN));
            assert_eq!(info.reason, reason.name());
        }
    }
}
