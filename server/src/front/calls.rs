//! The calls of `VmService` that are about VMs as such. They also work for VMs whose processes have died.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request as HttpRequest, Response as HttpResponse};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use vmprobe_proto::codec::Codec;
use vmprobe_proto::v1;

use super::process::VmProcess;
use super::vms::Vms;
use crate::access::{Account, Caller, NamedVm};
use crate::blocking::blocking;
use crate::files::GrantedFiles;
use crate::page::Page;
use crate::{convert, doctor, images, status};

/// A call's handler.
type Answer =
    Box<dyn FnOnce(HttpRequest<Body>) -> BoxFuture<HttpResponse<Body>, Infallible> + Send>;

/// Returns the handler of calls of this path, if this process answers them itself.
pub fn answer(vms: &Arc<Vms>, path: &str) -> Option<Answer> {
    let vms = Arc::clone(vms);
    match path.strip_prefix("/vmprobe.v1.VmService/")? {
        "CreateVm" => Some(with(vms, create)),
        "ListVms" => Some(with(vms, list)),
        "GetVm" => Some(with(vms, get)),
        "WaitVm" => Some(with(vms, wait)),
        "DeleteVm" => Some(with(vms, delete)),
        _ => None,
    }
}

fn with<Q, R, F>(vms: Arc<Vms>, call: fn(Arc<Vms>, Asked, Q) -> F) -> Answer
where
    Q: prost::Message + Default + 'static,
    R: prost::Message + Default + 'static,
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    Box::new(move |request| {
        Box::pin(async move {
            let most = vms.settings().limits.request_bytes();
            let codec = Codec::<R, Q>::default();
            let grpc = Grpc::new(codec).max_decoding_message_size(most);
            Ok({ grpc }.unary(Unary { vms, call }, request).await)
        })
    })
}

/// The caller, and where to note which VM the call is for.
struct Asked {
    caller: Caller,
    named: NamedVm,
}

impl Asked {
    /// # Errors
    /// `PERMISSION_DENIED` for a VM that isn't one of the caller's.
    fn check_vm(&self, vm: &str) -> Result<(), Status> {
        self.named.tell(vm);
        self.caller.check_vm(vm)
    }
}

/// A function as a service for tonic.
struct Unary<Q, F> {
    vms: Arc<Vms>,
    call: fn(Arc<Vms>, Asked, Q) -> F,
}

impl<Q, R, F> UnaryService<Q> for Unary<Q, F>
where
    F: Future<Output = Result<R, Status>> + Send + 'static,
{
    type Response = R;
    type Future = BoxFuture<Response<R>, Status>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (_, extensions, message) = request.into_parts();
        let asked = Caller::of(&extensions).map(|caller| Asked {
            caller,
            named: extensions.get::<NamedVm>().cloned().unwrap_or_default(),
        });
        let answer = asked.map(|asked| (self.call)(Arc::clone(&self.vms), asked, message));
        Box::pin(async { answer?.await.map(Response::new) })
    }
}

/// Returns the files that a caller may name by their paths.
fn granted(vms: &Vms, caller: &Caller) -> GrantedFiles {
    let folders = &vms.settings().files;
    match folders.is_empty() && caller.account.is_as_mighty_as_the_server() {
        true => GrantedFiles::any(),
        false => GrantedFiles::below(folders),
    }
}

async fn create(
    vms: Arc<Vms>,
    asked: Asked,
    request: v1::CreateVmRequest,
) -> Result<v1::CreateVmResponse, Status> {
    asked.check_vm(&request.name)?;
    let granted = granted(&vms, &asked.caller);
    make(vms, asked.caller.account, granted, request).await
}

/// Makes a VM for an account, of files that it may name. If this is dropped before it has answered, nothing is left.
///
/// # Errors
/// The request or the host is unsuitable, or a limit is reached.
pub async fn make(
    vms: Arc<Vms>,
    account: Account,
    mut granted: GrantedFiles,
    request: v1::CreateVmRequest,
) -> Result<v1::CreateVmResponse, Status> {
    let reservation = vms.reserve(&request.name, convert::memory_mib(&request))?;
    let place = vms.creation().await?;
    let name = reservation.name().to_owned();
    let request = v1::CreateVmRequest { name, ..request };
    let store = vms.images().cloned();
    // A VM whose files are being copied holds its place until they are copied, even if the call has ended before.
    let (request, granted, images, _until_it_is_made, reservation) = blocking(move || {
        let images = images::grant(store.as_ref(), &account, &request, &mut granted)?;
        Ok((request, granted, images, place, reservation))
    })
    .await?;
    let (process, created) =
        VmProcess::start(vms.program(), request, vms.settings(), granted, images).await?;
    reservation.fill(Arc::new(process))?;
    doctor::warn_if_unfit();
    Ok(created)
}

async fn list(
    vms: Arc<Vms>,
    asked: Asked,
    request: v1::ListVmsRequest,
) -> Result<v1::ListVmsResponse, Status> {
    let v1::ListVmsRequest {
        page_size,
        page_token,
    } = request;
    let page: Page<String> = Page::asked(page_size, &page_token, "VMs")?;
    let is_later = |name: &str| page.after().is_none_or(|last| name > last.as_str());
    let later = vms.list().into_iter();
    let later = later.filter(|process| asked.caller.may_use(process.name()));
    let later = later.filter(|process| is_later(process.name()));
    let (found, next_page_token) = page.cut(later, |process| process.name().to_owned());
    let mut described = JoinSet::new();
    for process in found {
        described.spawn(async move { process.describe().await });
    }
    let mut vms = described.join_all().await;
    vms.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(v1::ListVmsResponse {
        vms,
        next_page_token,
    })
}

async fn get(
    vms: Arc<Vms>,
    asked: Asked,
    request: v1::GetVmRequest,
) -> Result<v1::GetVmResponse, Status> {
    asked.check_vm(&request.vm)?;
    let process = vms.get(&request.vm)?;
    Ok(v1::GetVmResponse {
        vm: Some(process.describe().await),
    })
}

async fn wait(
    vms: Arc<Vms>,
    asked: Asked,
    request: v1::WaitVmRequest,
) -> Result<v1::WaitVmResponse, Status> {
    asked.check_vm(&request.vm)?;
    let process = vms.get(&request.vm)?;
    Ok(v1::WaitVmResponse {
        ending: Some(process.guest_ended().await),
    })
}

async fn delete(
    vms: Arc<Vms>,
    asked: Asked,
    request: v1::DeleteVmRequest,
) -> Result<v1::DeleteVmResponse, Status> {
    asked.check_vm(&request.vm)?;
    let process = vms.get(&request.vm)?;
    // The deletion goes on to the end even if the client goes away, so that no VM is left without its guest.
    let deleted = tokio::spawn(async move {
        process.delete_guest().await;
        vms.remove(&process);
        tracing::info!(vm = process.name(), "deleted");
    });
    deleted.await.map_err(|error| status::cut_off(&error))?;
    Ok(v1::DeleteVmResponse {})
}
