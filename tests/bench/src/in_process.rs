//! The whole server in this process, with a client that is connected to it over loopback.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use iced_x86::IcedError;
use tempfile::TempDir;
use test_certificates::Authority;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vmprobe_client::v1::CreateVmRequest;
use vmprobe_client::{Client, ClientError, Credentials};
use vmprobe_server::testing::Publishers;
use vmprobe_server::{
    BindError, ListenAddress, ServeError, ServeOptions, Server, Settings, TlsFiles, VmProgram,
};

/// Memory of a guest in MiB.
const GUEST_MIB: u64 = 64;

/// Why there is no server, no client, or no guest.
#[derive(Debug, thiserror::Error)]
pub enum InProcessError {
    /// There is no runtime, or no file to be written.
    #[error("can't {0}")]
    Io(&'static str, #[source] io::Error),
    /// There are no certificates.
    #[error("can't make certificates")]
    Certificates(#[from] rcgen::Error),
    /// The guest's code is wrong.
    #[error("the guest's code doesn't assemble")]
    Assemble(#[from] IcedError),
    /// The server does not start.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// How clients connect to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By TCP as it is.
    Plain,
    /// By TLS, with certificates of both sides.
    Tls,
}

/// A server that runs until it is told to end.
#[derive(Debug)]
pub struct Running {
    /// Where clients connect.
    pub endpoint: String,
    /// Where its metrics and its status page are, in plain text.
    pub metrics: String,
    /// The credentials of its clients.
    pub credentials: Credentials,
    /// Publish events of its VMs, if they run in this process.
    pub publishers: Publishers,
    end: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    /// Starts one, with its VMs in this process or in processes of a program.
    ///
    /// # Errors
    /// There are no certificates, or it doesn't start.
    pub async fn start(
        transport: Transport,
        program: Option<&Path>,
    ) -> Result<Self, InProcessError> {
        let publishers = Publishers::default();
        let program = match program {
            Some(program) => VmProgram::Process(program.to_owned()),
            None => VmProgram::Here(publishers.clone()),
        };
        let mut settings = Settings::default();
        settings.files.read = vec!["/".into()];
        // These guests have no page tables of a kernel, which the server would warn about.
        settings.log.log_level = Some("error".to_owned());
        let any_port = || ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let mut options = ServeOptions::new(any_port(), settings, program);
        options.metrics = vec![any_port()];
        let folder = TempDir::new()
            .map_err(|error| InProcessError::Io("make a folder for certificates", error))?;
        let credentials = match transport {
            Transport::Plain => Credentials::default(),
            Transport::Tls => certified(&mut options, folder.path())?,
        };
        let server = Server::bind(options).await?;
        let endpoint = server.endpoints()[0].clone();
        let metrics = server.metrics_endpoints()[0].clone();
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            // The server reads its certificates again and again, so their folder stays.
            let _folder = folder;
            // It also ends if the sender is gone.
            server.serve(async { drop(ended.await) }).await
        });
        Ok(Self {
            endpoint,
            metrics,
            credentials,
            publishers,
            end,
            serving,
        })
    }

    /// A client of its own connection.
    ///
    /// # Errors
    /// The server can't be reached.
    pub async fn connect(&self) -> Result<Client, ClientError> {
        Client::connect_with(&self.endpoint, &self.credentials).await
    }

    /// Ends it, with its VMs.
    pub async fn end(self) {
        drop(self.end);
        // Its errors have been reported by the calls before.
        let _ = self.serving.await;
    }
}

/// Lets clients connect by TLS only, one of which has the returned credentials.
fn certified(options: &mut ServeOptions, folder: &Path) -> Result<Credentials, InProcessError> {
    const CLIENT: &str = "bench";
    let authority = Authority::new()?;
    let (server, client) = (authority.server()?, authority.client(CLIENT)?);
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        let written = fs::write(&file, text);
        written.map_err(|error| InProcessError::Io("write certificates", error))?;
        Ok::<_, InProcessError>(file)
    };
    options.tls = Some(TlsFiles {
        certificate: write("server.pem", &server.certificate)?,
        key: write("server.key", &server.key)?,
        client_ca: Some(write("ca.pem", &authority.pem)?),
    });
    let clients = format!(
        "[[client]]\nname = '{CLIENT}'\ncertificate = '{CLIENT}'\nrole = 'control'\nvms = ['*']\n"
    );
    options.clients = Some(write("clients.toml", &clients)?);
    options.plain_text = false;
    Ok(Credentials {
        ca: Some(authority.pem.into_bytes()),
        identity: Some((client.certificate.into_bytes(), client.key.into_bytes())),
        token: None,
    })
}

/// Does some work with a server of its own and a client of it in plain text. The server ends afterwards.
///
/// # Errors
/// The server doesn't start, can't be reached, or the work fails.
pub async fn with_server<R, E: From<InProcessError>>(
    work: impl AsyncFnOnce(&Client) -> Result<R, E>,
) -> Result<R, E> {
    let running = Running::start(Transport::Plain, None).await?;
    let done = match running.connect().await {
        Ok(client) => work(&client).await,
        Err(error) => Err(InProcessError::from(error).into()),
    };
    running.end().await;
    done
}

/// Makes a guest of this kernel, which waits to be started.
///
/// # Errors
/// The kernel can't be written to a file, or the server refuses.
pub async fn create_guest(
    client: &Client,
    name: &str,
    kernel: &[u8],
) -> Result<(), InProcessError> {
    let path = std::env::temp_dir().join(format!("vmprobe-bench-{}", std::process::id()));
    fs::write(&path, kernel)
        .map_err(|error| InProcessError::Io("write the guest's kernel", error))?;
    let request = CreateVmRequest {
        name: name.into(),
        kernel: path.to_string_lossy().into_owned(),
        memory_mib: GUEST_MIB,
        hold: true,
        ..Default::default()
    };
    let created = client.create_vm(request).await;
    fs::remove_file(&path)
        .map_err(|error| InProcessError::Io("remove the guest's kernel", error))?;
    created?;
    Ok(())
}
