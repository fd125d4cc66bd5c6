//! The roles of clients, and the role that each call needs.

use serde::Deserialize;

/// What a client may do. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look at VMs, images, probes, events and symbols.
    Observe,
    /// Register and change probes that only watch, and read a guest's memory and registers.
    Probe,
    /// Make, pause and end VMs, use their consoles, debug and change them, hand images over.
    Control,
}

impl Role {
    /// Its name in the list of clients.
    pub fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Probe => "probe",
            Self::Control => "control",
        }
    }
}

/// The role that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// None: the call tells whether the server is there.
    Nothing,
    /// This role.
    Role(Role),
}

const PACKAGE: &str = "/vmprobe.v1.";
const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION: &str = "/grpc.reflection.";
const OBSERVE: &[&str] = &[
    "HostService/GetHost",
    "ImageService/GetImage",
    "ImageService/ListImages",
    "VmService/GetVm",
    "VmService/GetVmStats",
    "VmService/ListVms",
    "VmService/WaitVm",
    "ProbeService/ListProbes",
    "ProbeService/ListCalls",
    "ProbeService/ListBlacklist",
    "ProbeService/WaitProbes",
    "EventService/StreamEvents",
    "SymbolService/LookupSymbols",
    "SymbolService/ResolveAddress",
    "SymbolService/ListTypes",
    "SymbolService/DescribeType",
];
const PROBE: &[&str] = &[
    "ProbeService/RegisterProbes",
    "ProbeService/UnregisterProbes",
    "ProbeService/UpdateProbes",
    "SessionService/OpenSession",
    "VmService/ReadMemory",
    "VmService/ReadRegisters",
    "VmService/ReadStack",
];

/// Returns what a call of this path needs. An unknown call needs the highest role.
pub(super) fn needed(path: &str) -> Need {
    if path.starts_with(HEALTH) {
        return Need::Nothing;
    }
    if path.starts_with(REFLECTION) {
        return Need::Role(Role::Observe);
    }
    let call = path.strip_prefix(PACKAGE).unwrap_or_default();
    Need::Role(match call {
        call if OBSERVE.contains(&call) => Role::Observe,
        call if PROBE.contains(&call) => Role::Probe,
        _ => Role::Control,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;
    use vmprobe_proto::v1;

    use super::*;
    use crate::described;

    #[test]
    fn each_call_takes_a_role_and_the_lists_name_calls_that_there_are() {
        let set = FileDescriptorSet::decode(v1::FILE_DESCRIPTOR_SET).unwrap();
        let mut with_role: [BTreeSet<String>; 3] = Default::default();
        for (path, _) in described::calls(&set) {
            // Calls of other packages are decided by their prefix, not one by one.
            let Some(call) = path.strip_prefix(PACKAGE) else {
                continue;
            };
            match needed(&path) {
                Need::Role(role) => with_role[role as usize].insert(call.to_owned()),
                Need::Nothing => panic!("{call} is for everybody"),
            };
        }
        let listed = |calls: &[&str]| calls.iter().map(|call| (*call).to_owned()).collect();
        let [observe, probe, control] = with_role;
        assert_eq!(observe, listed(OBSERVE));
        assert_eq!(probe, listed(PROBE));
        let expected = [
            "ConsoleService/AttachConsole",
            "DebugService/Debug",
            "HitService/HandleHits",
            "ImageService/DeleteImage",
            "ImageService/UploadImage",
            "VmService/CreateVm",
            "VmService/DeleteVm",
            "VmService/DumpVm",
            "VmService/KillVm",
            "VmService/PauseVm",
            "VmService/ResumeVm",
            "VmService/StartVm",
        ];
        assert_eq!(control, listed(&expected));
        assert_eq!(needed("/vmprobe.v2.New/Call"), Need::Role(Role::Control));
        assert_eq!(needed("/grpc.health.v1.Health/Check"), Need::Nothing);
    }
}
