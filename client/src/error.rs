//! Errors between a client and its server.

use thiserror::Error;
use tonic::{Code, Status, TimeoutExpired};

/// Why a call failed. The text of the variants that carry one comes from the server and says what
/// to do.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The endpoint is not an address of a server.
    #[error(
        "`{endpoint}` is not a server address: {reason}; give one like unix:/run/vmprobe/vmprobed.sock or https://host:7070"
    )]
    Endpoint {
        /// The endpoint as given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing answered at the endpoint.
    #[error(
        "no server at {endpoint} ({reason}): start one there with `vmprobed`, or name another endpoint"
    )]
    NoServer {
        /// The endpoint that was tried.
        endpoint: String,
        /// The operating system's reason.
        reason: String,
    },
    /// The connection broke, or the server is shutting down.
    #[error("the connection to the server is lost ({0}): see whether `vmprobed` still runs")]
    Disconnected(String),
    /// The VM, probe or symbol that the call names isn't there.
    #[error("{0}")]
    NotFound(String),
    /// The VM or probe that the call would make is there already.
    #[error("{0}")]
    AlreadyExists(String),
    /// The server refused a value of the request.
    #[error("{message}")]
    InvalidArgument {
        /// The fields that are wrong, as paths into the request such as `probes[2].name`; empty
        /// where the server named none.
        fields: Vec<String>,
        /// The server's text: what is wrong, and with what.
        message: String,
    },
    /// The call doesn't fit the state of the VM or of the host.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The server doesn't know the caller.
    #[error("{0}")]
    Unauthenticated(String),
    /// The server knows the caller, and doesn't allow the call.
    #[error("{0}")]
    PermissionDenied(String),
    /// A limit of the server is reached.
    #[error("{0}")]
    ResourceExhausted(String),
    /// The time for an answer is over.
    #[error("there was no answer in the time given: what was waited for hasn't come about")]
    Timeout,
    /// The server doesn't know the call.
    #[error("the server doesn't know this call: it may be older than this client ({0})")]
    Unimplemented(String),
    /// The server broke the protocol.
    #[error("the server's answer lacks its {0}: it isn't a vmprobe server, or not of this version")]
    Protocol(&'static str),
    /// Any other answer.
    #[error("the server failed with {code:?}: {message}")]
    Other {
        /// The gRPC status code.
        code: Code,
        /// The server's text.
        message: String,
    },
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => Self::NotFound(message),
            Code::AlreadyExists => Self::AlreadyExists(message),
            Code::InvalidArgument | Code::OutOfRange => Self::InvalidArgument {
                fields: violated_fields(&status),
                message,
            },
            Code::FailedPrecondition => Self::FailedPrecondition(message),
            Code::Unauthenticated => Self::Unauthenticated(message),
            Code::PermissionDenied => Self::PermissionDenied(message),
            Code::ResourceExhausted => Self::ResourceExhausted(message),
            Code::DeadlineExceeded => Self::Timeout,
            // tonic's form of a missed deadline, on both sides.
            Code::Cancelled if message == TimeoutExpired(()).to_string() => Self::Timeout,
            Code::Unimplemented => Self::Unimplemented(message),
            Code::Unavailable => Self::Disconnected(message),
            // A connection that breaks in mid-call has its cause in the source, not in the code.
            Code::Unknown if std::error::Error::source(&status).is_some() => {
                Self::Disconnected(innermost(&status))
            }
            code => Self::Other { code, message },
        }
    }
}

fn violated_fields(status: &Status) -> Vec<String> {
    use tonic_types::StatusExt;

    status
        .get_details_bad_request()
        .map(|details| {
            details
                .field_violations
                .into_iter()
                .map(|violation| violation.field)
                .collect()
        })
        .unwrap_or_default()
}

/// Returns the text of the last error in a chain: the operating system's, if it's the cause.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_s_own_words_are_the_message() {
        let error = ClientError::from(Status::not_found("no VM is called `a`"));
        assert!(matches!(error, ClientError::NotFound(_)));
        assert_eq!(error.to_string(), "no VM is called `a`");
    }

    #[test]
    fn a_refused_value_names_its_fields() {
        use tonic_types::{ErrorDetails, StatusExt};
        let details = ErrorDetails::with_bad_request_violation("vcpus", "1 to 8");
        let status = Status::with_error_details(Code::InvalidArgument, "vcpus: 1 to 8", details);
        let ClientError::InvalidArgument { fields, .. } = ClientError::from(status) else {
            panic!("not an InvalidArgument");
        };
        assert_eq!(fields, ["vcpus"]);
    }

    #[test]
    fn a_deadline_reads_as_such_whoever_notices_it() {
        for status in [
            Status::deadline_exceeded("too late"),
            Status::cancelled("Timeout expired"),
        ] {
            assert!(matches!(ClientError::from(status), ClientError::Timeout));
        }
    }

    #[test]
    fn an_unavailable_server_reads_as_a_lost_connection() {
        let error = ClientError::from(Status::unavailable("broken pipe"));
        assert!(
            error
                .to_string()
                .starts_with("the connection to the server is lost")
        );
    }
}
