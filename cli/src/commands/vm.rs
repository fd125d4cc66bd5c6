//! `vmprobe vm ...`

use super::session::{interrupted, reach};
use super::{guest, image};
use crate::cli::{Create, GuestArgs, Info, List, VmCommand, VmWait};
use crate::failure::Failure;
use crate::output::print;
use crate::render;

pub async fn vm(command: VmCommand) -> Result<u8, Failure> {
    match command {
        VmCommand::Create(create) => self::create(&create).await?,
        VmCommand::List(list) => self::list(&list).await?,
        VmCommand::Info(info) => self::info(&info).await?,
        VmCommand::Wait(wait) => return self::wait(&wait).await,
        VmCommand::Start(target) => {
            let (client, vm) = reach(&target).await?;
            client.start_vm(&vm).await?;
        }
        VmCommand::Pause(target) => {
            let (client, vm) = reach(&target).await?;
            client.pause_vm(&vm).await?;
        }
        VmCommand::Resume(target) => {
            let (client, vm) = reach(&target).await?;
            client.resume_vm(&vm).await?;
        }
        VmCommand::Kill(target) => {
            let (client, vm) = reach(&target).await?;
            client.kill_vm(&vm).await?;
        }
        VmCommand::Delete(target) => {
            let (client, vm) = reach(&target).await?;
            client.delete_vm(&vm).await?;
        }
    }
    Ok(0)
}

/// Prints the VM's name alone, for `vm=$(vmprobe vm create ...)`.
async fn create(create: &Create) -> Result<(), Failure> {
    let GuestArgs { kernel, machine } = &create.guest;
    let mut request = guest::request(&create.name, kernel, machine, create.hold)?;
    let client = create.server.connect().await?;
    if create.push.applies_to(&create.server.endpoint()?) {
        image::push_files(&client, &mut request).await?;
    }
    let (vm, _) = client.create_vm(request).await?;
    match create.format.is_json() {
        true => print([render::vm_json(&vm).to_string()]),
        false => print([vm.name]),
    }
}

async fn list(list: &List) -> Result<(), Failure> {
    let vms = list.server.connect().await?.list_vms().await?;
    if list.format.is_json() {
        print(vms.iter().map(|vm| render::vm_json(vm).to_string()))
    } else {
        print(render::vm_list(&vms))
    }
}

async fn info(info: &Info) -> Result<(), Failure> {
    let (client, vm) = reach(&info.target).await?;
    let registers = match info.registers {
        Some(vcpu) => Some(client.read_registers(&vm, vcpu).await?),
        None => None,
    };
    let vm = client.get_vm(&vm).await?;
    if info.format.is_json() {
        let mut value = render::vm_json(&vm);
        if let Some(registers) = registers {
            value["registers"] = render::registers_json(&registers);
        }
        return print([value.to_string()]);
    }
    let mut lines = render::vm_list(std::slice::from_ref(&vm));
    lines.extend(render::vm_details(&vm));
    lines.extend(registers.iter().flat_map(render::registers));
    print(lines)
}

async fn wait(wait: &VmWait) -> Result<u8, Failure> {
    let (client, vm) = reach(&wait.target).await?;
    let ending = tokio::select! {
        ending = client.wait_vm(&vm) => ending?,
        failure = interrupted() => return Err(failure),
    };
    print([match wait.format.is_json() {
        true => render::ending_json(&ending).to_string(),
        false => render::ending(&ending),
    }])?;
    Ok(u8::try_from(ending.exit_code).unwrap_or(u8::MAX))
}
