//! Clients from several addresses, plain or over TLS, and good clients, which must be served despite the others.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::client::Client;

/// Certificate of a server named `test`, trusted only by these tests.
pub const CERTIFICATE: &str = include_str!("test-only.crt");
pub const KEY: &str = include_str!("test-only.key");

/// A byte stream that carries HTTP/2.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// How to reach a front.
#[derive(Clone)]
pub struct Dial {
    address: SocketAddr,
    tls: Option<TlsConnector>,
}

impl Dial {
    pub fn new(address: SocketAddr, is_tls: bool) -> Dial {
        Dial { address, tls: is_tls.then(connector) }
    }

    /// Certificate and key for a fixture, if it uses TLS.
    pub fn identity(is_tls: bool) -> Option<(&'static str, &'static str)> {
        is_tls.then_some((CERTIFICATE, KEY))
    }

    /// Connects a socket from 127.0.0.`from`.
    pub async fn socket(&self, from: u8) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, from], 0).into())?;
        let socket = socket.connect(self.address).await?;
        // Without TCP_NODELAY each call waits for a delayed acknowledgement of the server.
        socket.set_nodelay(true)?;
        Ok(socket)
    }

    /// Connects a stream, after the TLS handshake if there is TLS.
    pub async fn io(&self, from: u8) -> io::Result<Box<dyn Io>> {
        let socket = self.socket(from).await?;
        Ok(match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                let name = ServerName::try_from("test").unwrap();
                Box::new(tls.connect(name, socket).await?)
            }
        })
    }

    pub async fn client(&self, from: u8) -> Client {
        Client::over(self.io(from).await.unwrap()).await
    }
}

pub fn connector() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// A client whose calls must all succeed. Like gRPC's clients, it connects again after a GOAWAY, and repeats a call if the
/// server says that it has not seen the call.
pub struct Good {
    dial: Dial,
    from: u8,
    client: Client,
}

impl Good {
    /// Connects to a front that has a host: its first call must succeed.
    pub async fn newcomer(dial: &Dial, from: u8) -> Good {
        Good { dial: dial.clone(), from, client: dial.client(from).await }
    }

    /// Connects, and waits until the host has answered a call.
    pub async fn new(dial: &Dial, from: u8) -> Good {
        let mut good = Good::newcomer(dial, from).await;
        while good.code(b"there?").await != 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        good
    }

    async fn code(&mut self, message: &[u8]) -> i32 {
        loop {
            if !self.client.is_open().await {
                self.client = self.dial.client(self.from).await;
            }
            match self.client.try_call("/test.Test/Echo", message).await {
                Ok(answer) if answer.code() == 0 => {
                    assert!(answer.ok() == [message]);
                    return 0;
                }
                Ok(answer) => return answer.code(),
                Err(error)
                    if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) =>
                {
                    self.client = self.dial.client(self.from).await;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Makes calls, one after the other.
    pub async fn calls(&mut self, count: usize, message: &[u8]) {
        for _ in 0..count {
            assert_eq!(self.code(message).await, 0);
        }
    }
}
