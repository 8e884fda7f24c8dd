//! TLS and ALPN.

use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use wave_grpc::Limits;

use crate::client::{Client, run};
use crate::dial::{CERTIFICATE, KEY, connector};
use crate::fixture::Fixture;

#[test]
fn clients_speak_tls_and_others_are_dropped() {
    let mut fixture = Fixture::made_of(Limits::default(), Some((CERTIFICATE, KEY)));
    fixture.start_host(|options| options);
    run(async {
        let io = TcpStream::connect(fixture.address).await.unwrap();
        let io = connector().connect(ServerName::try_from("test").unwrap(), io).await.unwrap();
        assert_eq!(io.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut client = Client::over(io).await;
        let health = client.call("/grpc.health.v1.Health/Check", &[], &[b""]).await;
        assert_eq!(health.ok().len(), 1);
        while client.call("/test.Test/Echo", &[], &[&[1; 100_000]]).await.code() != 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let plain = TcpStream::connect(fixture.address).await.unwrap();
        if let Ok((_, connection)) = h2::client::handshake(plain).await {
            assert!(connection.await.is_err());
        }
    });
}
