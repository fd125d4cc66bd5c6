//! Errors as gRPC status codes, with the details of [`refusal`](crate::refusal).
//!
//! | code | for |
//! | --- | --- |
//! | `INVALID_ARGUMENT` | a value that is wrong in any state of the VM; the field is in the `BadRequest` details |
//! | `NOT_FOUND` | no such VM, probe, symbol or address |
//! | `ALREADY_EXISTS` | a VM or probe of that name |
//! | `FAILED_PRECONDITION` | a correct request, but not in this state of the VM or on this host |
//! | `ABORTED` | the guest was in the middle of a change of its own: try again |
//! | `RESOURCE_EXHAUSTED` | a limit of the server |
//! | `INTERNAL` | KVM or the server failed |

use std::fmt::{Display, Formatter};
use std::io;

use guest_kernel::symbols::LookupError;
use guest_state::{DebuggingError, VcpuError};
use probe_engine::error::{BatchError, ChangeError, RegisterError};
use tonic::{Code, Status};
use vmm::confinement::ConfinementError;
use vmm::{CreateError, DeviceError, DiskError, FileError, NetError, VsockError};

use crate::refusal::without_field;
pub use crate::refusal::{
    Precondition, Reason, Resource, because, exhausted, exhausted_by, exists, invalid, missing,
    precondition, with_field,
};

/// Each processor has four of them (SDM vol. 3, 18.2.1).
const DEBUG_REGISTERS: &str = "debug registers";

/// Returns the error that the host has no thread.
pub fn no_thread(error: &io::Error) -> Status {
    exhausted(
        "host threads",
        format!("the host has no thread for the VM: {error}"),
    )
}

/// Returns the reason why a VM was not made.
pub fn create(error: &CreateError) -> Status {
    let code = match error {
        CreateError::Kvm(_)
        | CreateError::Device(
            DeviceError::Disk(DiskError::Busy { .. })
            | DeviceError::Network(
                NetError::TapBusy { .. }
                | NetError::TapForbidden { .. }
                | NetError::NoTun { .. }
                | NetError::NoPasst
                | NetError::StartPasst { .. },
            )
            | DeviceError::Vsock(VsockError::InUse { .. }),
        ) => Code::FailedPrecondition,
        CreateError::Ram(_)
        | CreateError::Events(_)
        | CreateError::Device(DeviceError::Network(NetError::Host { .. })) => {
            Code::ResourceExhausted
        }
        CreateError::File {
            cause: FileError::TooLarge { .. },
            ..
        } => {
            let what = error.field().unwrap_or_default();
            let message =
                format!("{error}: make it smaller, or start vmprobed with a larger --max-file");
            return exhausted_by(what, "--max-file", message);
        }
        CreateError::Cpu(_)
        | CreateError::Vcpu(_)
        | CreateError::Bus(_)
        | CreateError::Refused { .. } => Code::Internal,
        // All other errors are faults of the request.
        _ => Code::InvalidArgument,
    };
    match error.field() {
        Some(field) => with_field(code, field, error.to_string()),
        None => without_field(code, error.to_string()),
    }
}

/// Returns the reason why a VM's process can't be confined.
pub fn confinement(error: &ConfinementError) -> Status {
    precondition(Precondition::Host, "host", error.to_string())
}

/// The place of one of a batch's probes in a request, such as `probes[17]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeField {
    /// The field with the list.
    pub list: &'static str,
    /// The index in the list.
    pub index: usize,
}

impl Display for ProbeField {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]", self.list, self.index)
    }
}

/// Returns the reason why a batch of probes was not registered. The details name the probe, as does the message if the
/// batch has several.
pub fn register(refused: &BatchError, fields: &[ProbeField]) -> Status {
    use RegisterError as E;
    let BatchError { index, error } = refused;
    let code = match error {
        E::Symbol(LookupError::Unknown { .. }) | E::NotInModule { .. } => Code::NotFound,
        E::AlreadyExists { .. } => Code::AlreadyExists,
        E::KprobesChanging => Code::Aborted,
        E::GuestBreakpoint { .. }
        | E::GuestKprobe { .. }
        | E::InitTextFreed { .. }
        | E::NoArena { .. }
        | E::NoModules { .. }
        | E::Module { .. } => Code::FailedPrecondition,
        E::NoDebugRegister { .. } => Code::ResourceExhausted,
        E::Memory(_) => Code::Internal,
        E::Debugging(error) => return debugging(error),
        // All other errors, also future ones, are faults of the request.
        _ => Code::InvalidArgument,
    };
    let field = index.and_then(|index| fields.get(index));
    let message = match field {
        Some(field) if fields.len() > 1 => format!("{error} ({field})"),
        _ => error.to_string(),
    };
    let field = field.map_or_else(|| "probes".to_owned(), ProbeField::to_string);
    match code {
        Code::ResourceExhausted => exhausted_by(&field, DEBUG_REGISTERS, message),
        code => with_field(code, field, message),
    }
}

/// Returns the reason why a batch of probes was not removed, enabled, disabled or armed.
pub fn change(error: &ChangeError) -> Status {
    match error {
        ChangeError::UnknownProbe { .. } => {
            with_field(Code::NotFound, "selector.ids", error.to_string())
        }
        ChangeError::NoDebugRegister { .. } => exhausted(DEBUG_REGISTERS, error.to_string()),
        ChangeError::GuestKprobe { .. } => {
            precondition(Precondition::State, "guest", error.to_string())
        }
        ChangeError::KprobesChanging => because(Reason::GuestBusy, error.to_string()),
        ChangeError::Debugging(error) => debugging(error),
        _ => Status::internal(error.to_string()),
    }
}

/// Returns the reason why KVM doesn't report what probes need.
fn debugging(error: &DebuggingError) -> Status {
    let code = match error {
        DebuggingError::TooMany(_) => {
            return exhausted_by("probes", DEBUG_REGISTERS, error.to_string());
        }
        DebuggingError::Length { .. }
        | DebuggingError::ExecuteLength { .. }
        | DebuggingError::Misaligned { .. } => Code::InvalidArgument,
        DebuggingError::Vcpu(error) => return vcpu(error),
    };
    with_field(code, "probes", error.to_string())
}

/// Returns the reason why a vCPU can't be read or changed.
pub fn vcpu(error: &VcpuError) -> Status {
    Status::internal(error.to_string())
}

/// Returns the error for a task that was cut off: the server is shutting down, or has a bug.
pub fn cut_off(error: &tokio::task::JoinError) -> Status {
    Status::internal(format!("the server did not finish this call: {error}"))
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;
    use guest_state::GuestVirtAddr;
    use probe_engine::probe::ProbeId;

    #[test]
    fn each_refusal_of_a_probe_has_the_code_of_its_cause() {
        let place = || "f+0x1".to_owned();
        let at = GuestVirtAddr(0x10);
        let table = [
            (
                RegisterError::Symbol(LookupError::Unknown {
                    name: "f".into(),
                    similar: vec![],
                }),
                Code::NotFound,
            ),
            (
                RegisterError::Symbol(LookupError::Ambiguous {
                    name: "f".into(),
                    addresses: vec![at],
                }),
                Code::InvalidArgument,
            ),
            (
                RegisterError::AlreadyExists {
                    name: "f".into(),
                    id: ProbeId(1),
                    address: at,
                },
                Code::AlreadyExists,
            ),
            (
                RegisterError::DuplicateName { name: "f".into() },
                Code::InvalidArgument,
            ),
            (
                RegisterError::NotText {
                    place: place(),
                    address: at,
                },
                Code::InvalidArgument,
            ),
            (
                RegisterError::InitTextFreed { place: place() },
                Code::FailedPrecondition,
            ),
            (
                RegisterError::Blacklisted {
                    place: place(),
                    kind: "noinstr",
                    reason: "it is".into(),
                },
                Code::InvalidArgument,
            ),
            (
                RegisterError::NoArena {
                    place: place(),
                    why: "the hole is used".into(),
                },
                Code::FailedPrecondition,
            ),
            (
                RegisterError::NoDebugRegister { place: place() },
                Code::ResourceExhausted,
            ),
            (
                RegisterError::WatchAlignment {
                    place: place(),
                    address: at,
                    len: 8,
                },
                Code::InvalidArgument,
            ),
            (
                RegisterError::NoModules {
                    why: "it has none".into(),
                },
                Code::FailedPrecondition,
            ),
            (
                RegisterError::NotInModule {
                    module: "m".into(),
                    symbol: "f".into(),
                },
                Code::NotFound,
            ),
        ];
        for (error, code) in table {
            let status = register(&error.clone().into(), &[]);
            assert_eq!(status.code(), code, "{error}");
            assert_eq!(status.message(), error.to_string());
        }
    }

    #[test]
    fn a_refused_probe_is_named_by_its_place_in_the_request() {
        let error = RegisterError::EmptyFunction { symbol: "f".into() };
        let field = |index, probes, cmdline| {
            let error = error.clone();
            let probe = |list| move |index| ProbeField { list, index };
            let fields = (0..probes).map(probe("probes"));
            let fields: Vec<_> = fields.chain((0..cmdline).map(probe("cmdline"))).collect();
            let status = register(&BatchError { index, error }, &fields);
            let details = status.get_details_bad_request().unwrap();
            let field = details.field_violations[0].field.clone();
            (field, status.message().to_owned())
        };
        let plain = error.to_string();
        let named = |field: &str| (field.to_owned(), format!("{plain} ({field})"));
        assert_eq!(field(Some(17), 20, 0), named("probes[17]"));
        assert_eq!(field(Some(1), 2, 3), named("probes[1]"));
        assert_eq!(field(Some(4), 2, 3), named("cmdline[2]"));
        assert_eq!(
            field(Some(0), 1, 0),
            ("probes[0]".to_owned(), plain.clone())
        );
        assert_eq!(field(None, 20, 0), ("probes".to_owned(), plain.clone()));
    }

    #[test]
    fn a_change_that_can_t_be_made_has_the_code_of_its_cause() {
        let place = "x".to_owned();
        for (error, code) in [
            (ChangeError::UnknownProbe { id: ProbeId(9) }, Code::NotFound),
            (
                ChangeError::NoDebugRegister { place },
                Code::ResourceExhausted,
            ),
        ] {
            assert_eq!(change(&error).code(), code, "{error}");
        }
        let (address, len) = (GuestVirtAddr(9), 8);
        for (error, code) in [
            (DebuggingError::TooMany(5), Code::ResourceExhausted),
            (
                DebuggingError::Misaligned { address, len },
                Code::InvalidArgument,
            ),
        ] {
            assert_eq!(debugging(&error).code(), code, "{error}");
        }
    }

    #[test]
    fn a_wrong_value_names_its_field_in_the_details() {
        let status = invalid("vcpus", "1 to 8 vCPUs, not 0");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "1 to 8 vCPUs, not 0");
        let details = status.get_details_bad_request().unwrap();
        assert_eq!(details.field_violations[0].field, "vcpus");
    }
}
