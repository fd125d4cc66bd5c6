//! Opening KVM, its capabilities, and the processor.

use std::{
    arch::x86_64::{__cpuid, CpuidResult},
    ffi::CString,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt},
    },
    path::Path,
};

use kvm_bindings::{
    KVM_CAP_SET_GUEST_DEBUG2, KVM_GUESTDBG_BLOCKIRQ, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVMIO,
    kvm_device_attr,
};
use kvm_ioctls::{Cap, Kvm};
use vmm_sys_util::{ioctl::ioctl_with_ref, ioctl_iow_nr};

use crate::{
    guest::{Guest, Runner},
    report::{Capabilities, Cpu, Device, KvmFindings, Virtualization},
};

ioctl_iow_nr!(KVM_HAS_DEVICE_ATTR, KVMIO, 0xe3, kvm_device_attr);

/// The only KVM API version there is (Documentation/virt/kvm/api.rst, 4.1).
const API_VERSION: i32 = 12;

/// Opens the KVM device at `path`, or tells what stands in the way.
pub(crate) fn open(path: &Path) -> Result<Kvm, Device> {
    let name = path.display().to_string();
    let unusable = |error: io::Error| Device::Unusable {
        path: name.clone(),
        error: error.to_string(),
    };
    let raw_path = CString::new(path.as_os_str().as_bytes()).map_err(|e| unusable(e.into()))?;
    let kvm = Kvm::new_with_path(&raw_path).map_err(|error| match error.errno() {
        // The last two: a device node whose driver isn't loaded.
        libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ENXIO => {
            Device::Missing { path: name.clone() }
        }
        libc::EACCES | libc::EPERM => no_permission(path),
        errno => unusable(io::Error::from_raw_os_error(errno)),
    })?;
    match kvm.get_api_version() {
        API_VERSION => Ok(kvm),
        api_version => Err(Device::NotKvm {
            path: name,
            api_version,
        }),
    }
}

fn no_permission(path: &Path) -> Device {
    let (mode, group) = fs::metadata(path).map_or_else(
        |_| ("unknown".into(), "unknown".into()),
        |meta| {
            (
                format!("{:04o}", meta.permissions().mode() & 0o7777),
                group_name(meta.gid()),
            )
        },
    );
    Device::NoPermission {
        path: path.display().to_string(),
        mode,
        group,
    }
}

/// The name of group `gid`, or its number where /etc/group has none for it.
fn group_name(gid: u32) -> String {
    let gid = gid.to_string();
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == gid).then(|| name.to_owned())
    });
    named.unwrap_or(gid)
}

/// What an opened KVM offers.
pub(crate) fn look(kvm: &Kvm, runner: &Runner) -> KvmFindings {
    let raw = |cap: Cap| u32::try_from(kvm.check_extension_int(cap)).unwrap_or(0);
    let capabilities = Capabilities {
        sync_regs: raw(Cap::SyncRegs),
        guest_debug_flags: guest_debug_flags(kvm),
        block_irq: can_block_irq(kvm),
        guest_debug: kvm.check_extension(Cap::SetGuestDebug),
        user_memory: kvm.check_extension(Cap::UserMemory),
        immediate_exit: kvm.check_extension(Cap::ImmediateExit),
        irqchip: kvm.check_extension(Cap::Irqchip),
        irqfd: kvm.check_extension(Cap::Irqfd),
        memslots: kvm.get_nr_memslots(),
        max_vcpus: kvm.get_max_vcpus(),
        tsc_deadline: kvm.check_extension(Cap::TscDeadlineTimer),
        tsc_offset: has_tsc_offset(runner),
    };
    KvmFindings {
        device: Device::Ok,
        api_version: Some(API_VERSION),
        capabilities: Some(capabilities),
    }
}

/// Returns true if this KVM claims `KVM_GUESTDBG_BLOCKIRQ`.
pub(crate) fn can_block_irq(kvm: &Kvm) -> bool {
    guest_debug_flags(kvm) & KVM_GUESTDBG_BLOCKIRQ != 0
}

fn guest_debug_flags(kvm: &Kvm) -> u32 {
    u32::try_from(kvm.check_extension_raw(KVM_CAP_SET_GUEST_DEBUG2.into())).unwrap_or(0)
}

/// Returns true if vCPUs have a TSC offset (Documentation/virt/kvm/devices/vcpu.rst,
/// `KVM_VCPU_TSC_CTRL`).
fn has_tsc_offset(runner: &Runner) -> bool {
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        ..Default::default()
    };
    let ask = move |guest: &mut Guest| {
        // SAFETY: the ioctl only reads `attribute`, which is alive here.
        let answer = unsafe { ioctl_with_ref(guest.vcpu(), KVM_HAS_DEVICE_ATTR(), &attribute) };
        Ok(answer == 0)
    };
    runner.run(&[], ask).unwrap_or(false)
}

/// The processor (Intel SDM volume 2A and AMD APM volume 3, "CPUID").
pub(crate) fn cpu() -> Cpu {
    let CpuidResult { ebx, ecx, edx, .. } = __cpuid(0);
    let vendor: Vec<u8> = [ebx, edx, ecx]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let features = __cpuid(1).ecx;
    let svm = __cpuid(0x8000_0000).eax > 0x8000_0000 && __cpuid(0x8000_0001).ecx & 1 << 2 != 0;
    Cpu {
        vendor: String::from_utf8_lossy(&vendor).into_owned(),
        hypervisor: features & 1 << 31 != 0,
        virtualization: match features & 1 << 5 != 0 {
            true => Virtualization::Vmx,
            false if svm => Virtualization::Svm,
            false => Virtualization::None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_a_missing_device() {
        for path in ["/made-up/kvm", "/dev/null/kvm"] {
            let found = open(Path::new(path)).map(drop);
            assert_eq!(found, Err(Device::Missing { path: path.into() }));
        }
    }

    #[test]
    fn a_device_that_answers_no_kvm_call_is_not_kvm() {
        let file = std::env::temp_dir().join(format!("doctor-not-kvm-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        for path in [Path::new("/dev/null"), &file] {
            let found = open(path).map(drop);
            let path = path.display().to_string();
            assert_eq!(
                found,
                Err(Device::NotKvm {
                    path,
                    api_version: -1
                })
            );
        }
        fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_folder_is_unusable_and_the_error_says_why() {
        let Err(Device::Unusable { path, error }) = open(Path::new("/")).map(drop) else {
            panic!("a folder opened as KVM");
        };
        assert_eq!(path, "/");
        assert!(error.contains("directory"), "{error}");
    }

    #[test]
    fn a_refused_device_names_its_mode_and_group() {
        let Device::NoPermission { mode, group, .. } = no_permission(Path::new("/dev/null")) else {
            panic!("not a refusal");
        };
        assert_eq!(mode.len(), 4);
        assert!(!group.is_empty());
        assert_eq!(group_name(0), "root");
        assert_eq!(group_name(4_000_000_000), "4000000000");
    }
}
