//! TLS: a certificate and its key from files, HTTP/2 by ALPN.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TlsError {
    #[error("{}: {error}; it must hold {what} in PEM", path.display())]
    File { path: PathBuf, what: &'static str, error: pem::Error },
    /// Certificate and key do not belong together.
    #[error("the certificate and the key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

/// Makes an acceptor of a certificate (its issuers may follow it in the file) and its private key.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let file = |path: &Path, what| {
        let path = path.to_owned();
        move |error| TlsError::File { path, what, error }
    };
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(file(certificate, "a certificate"))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(file(key, "a private key"))?;
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
