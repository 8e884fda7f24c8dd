//! The processes that may use a shared connection, by the secrets that they know.

use wave_tcp::datapath::FlowId;

use super::Streams;

/// Most secrets of a connection.
const SECRETS_MAX: usize = 16;

impl Streams {
    /// Entitles whoever knows the secret to a connection, if `from` may do so: it is the owner, or of a family that has the connection.
    /// `family` gives the secret of a process's family.
    pub(crate) fn lend(
        &mut self,
        flow: FlowId,
        secret: u128,
        from: u16,
        family: impl Fn(u16) -> u128,
    ) {
        let id = self.by_name.get(&flow.to_word());
        let Some(shared) = id.and_then(|id| self.shared.get_mut(id)) else { return };
        let (own, owner) = (family(from), shared.owner.process);
        let is_familys = own != 0 && (shared.secrets.contains(&own) || family(owner) == own);
        if owner != from && !is_familys {
            return;
        }
        // Its family has the connection whoever takes it over.
        for secret in [own, secret] {
            if secret == 0 || shared.secrets.contains(&secret) {
                continue;
            }
            if shared.secrets.len() == SECRETS_MAX {
                shared.secrets.remove(1);
            }
            shared.secrets.push(secret);
        }
    }
}
