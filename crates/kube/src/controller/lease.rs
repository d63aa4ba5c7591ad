//! Elects the controller that writes: the holder of a Lease. Clocks are not compared: a Lease ends when it
//! was not renewed for its duration by the observer's own clock.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::write::{Failure, within};

/// Duration of the Lease, after which others take it if it is not renewed.
const LEASE_S: i32 = 15;
/// Its holder stops writing this long after its last renewal began, before others can take it.
const HOLDS: Duration = Duration::from_secs(10);
/// Between two renewals, and between two attempts of waiting candidates.
const RENEW: Duration = Duration::from_secs(3);

/// The end of this candidate's leadership; none: it does not lead.
pub type Leads = Option<Instant>;

/// Does this candidate lead now?
pub fn is_leading(leads: &watch::Receiver<Leads>) -> bool {
    leads.borrow().is_some_and(|until| until > Instant::now())
}

/// A candidate for a Lease.
pub struct Candidate {
    leases: Api<Lease>,
    lease: String,
    identity: String,
    /// The last version of the Lease, and when it was observed.
    observed: Option<(Lease, Instant)>,
}

fn spec(lease: &Lease) -> LeaseSpec {
    lease.spec.clone().unwrap_or_default()
}

fn holder(lease: &Lease) -> Option<String> {
    spec(lease).holder_identity.filter(|holder| !holder.is_empty())
}

/// May `identity` write itself into a Lease that has not changed for this long?
fn may_take(lease: &Lease, identity: &str, unchanged: Duration) -> bool {
    let duration = spec(lease).lease_duration_seconds.unwrap_or(LEASE_S);
    let duration = Duration::from_secs(u64::try_from(duration).unwrap_or(0));
    holder(lease).is_none_or(|holder| holder == identity || unchanged >= duration)
}

/// The Lease that `identity` writes to take or renew `before`; none: to create it.
fn claimed(name: &str, before: Option<&Lease>, identity: &str, now: Timestamp) -> Lease {
    let old = before.map(spec).unwrap_or_default();
    let now = MicroTime(now);
    let renews = before.is_some_and(|before| holder(before).as_deref() == Some(identity));
    let changes = old.lease_transitions.unwrap_or(0);
    let new_metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    Lease {
        metadata: before.map_or(new_metadata, |before| before.metadata.clone()),
        spec: Some(LeaseSpec {
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: Some(LEASE_S),
            acquire_time: if renews { old.acquire_time } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if renews || before.is_none() {
                changes
            } else {
                changes.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }),
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

impl Candidate {
    /// A candidate that has not begun.
    pub fn new(client: Client, namespace: &str, lease: &str, identity: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            lease: lease.to_owned(),
            identity: identity.to_owned(),
            observed: None,
        }
    }

    /// Tries to hold the Lease for ever, and publishes the end of its leadership.
    pub async fn run(&mut self, leads: &watch::Sender<Leads>) {
        let mut trouble = None;
        loop {
            let began = Instant::now();
            match self.take_or_renew().await {
                Ok(holds) => {
                    let led = leads.borrow().is_some_and(|until| until > began);
                    if holds != led {
                        tracing::info!(
                            "{}",
                            if holds { "leading" } else { "waiting: another replica leads" }
                        );
                    }
                    leads.send_replace(holds.then(|| began + HOLDS));
                    trouble = None;
                }
                // Leadership lasts until its time is up.
                Err(why) if trouble.as_ref() != Some(&why) => {
                    tracing::warn!("the Lease {} cannot be held: {why}", self.lease);
                    trouble = Some(why);
                }
                Err(_) => {}
            }
            tokio::time::sleep(RENEW).await;
        }
    }

    /// Takes or renews the Lease, if it may.
    async fn take_or_renew(&mut self) -> Result<bool, String> {
        // The holder writes without reading: only it may have changed the Lease.
        let is_holder = self
            .observed
            .as_ref()
            .is_some_and(|(lease, _)| holder(lease).as_ref() == Some(&self.identity));
        if !is_holder {
            self.read().await?;
        }
        let before = self.observed.as_ref().map(|(lease, _)| lease);
        if let Some((lease, since)) = &self.observed
            && !may_take(lease, &self.identity, since.elapsed())
        {
            return Ok(false);
        }
        let lease = claimed(&self.lease, before, &self.identity, Timestamp::now());
        let parameters = PostParams::default();
        let write = async {
            match before {
                None => self.leases.create(&parameters, &lease).await,
                Some(_) => self.leases.replace(&self.lease, &parameters, &lease).await,
            }
        };
        match tokio::time::timeout(HOLDS / 2, write).await {
            Ok(Ok(lease)) => {
                self.observed = Some((lease, Instant::now()));
                Ok(true)
            }
            // Another candidate was faster, or the Lease was deleted: read it again.
            Ok(Err(error))
                if is_conflict(&error)
                    || matches!(&error, kube::Error::Api(status) if status.code == 404) =>
            {
                self.observed = None;
                Ok(false)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", HOLDS.as_secs() / 2)),
        }
    }

    /// Reads the Lease.
    async fn read(&mut self) -> Result<(), String> {
        let lease = match within(self.leases.get(&self.lease)).await {
            Ok(lease) => lease,
            Err(Failure::Missing) => {
                self.observed = None;
                return Ok(());
            }
            Err(Failure::Other(why)) => return Err(why),
        };
        let unchanged = self.observed.as_ref().is_some_and(|(observed, _)| {
            observed.metadata.resource_version == lease.metadata.resource_version
        });
        if !unchanged {
            self.observed = Some((lease, Instant::now()));
        }
        Ok(())
    }

    /// Gives the Lease up, so that others do not wait for its end.
    pub async fn release(&mut self) {
        let Some((mut lease, _)) = self.observed.take() else { return };
        if holder(&lease).as_ref() != Some(&self.identity) {
            return;
        }
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        }
        let parameters = PostParams::default();
        let _ =
            tokio::time::timeout(HOLDS / 5, self.leases.replace(&self.lease, &parameters, &lease))
                .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn a_lease_is_taken_when_nobody_has_it_or_its_holder_did_not_renew_it_for_its_time() {
        let first = claimed("fleet", None, "a", at(0));
        let almost = Duration::from_millis(14_999);
        assert!(may_take(&first, "a", Duration::ZERO));
        assert!(!may_take(&first, "b", almost));
        assert!(may_take(&first, "b", Duration::from_secs(15)));
        let mut given_back = first;
        given_back.spec.as_mut().expect("a spec").holder_identity = Some(String::new());
        assert!(may_take(&given_back, "b", Duration::ZERO));
        assert!(may_take(&Lease::default(), "b", Duration::ZERO));
    }

    #[test]
    fn a_lease_counts_who_took_it_and_keeps_since_when() {
        let first = claimed("fleet", None, "a", at(0));
        let renewed = spec(&claimed("fleet", Some(&first), "a", at(3)));
        assert_eq!(
            (renewed.acquire_time, renewed.renew_time),
            (Some(MicroTime(at(0))), Some(MicroTime(at(3))))
        );
        assert_eq!(renewed.lease_transitions, Some(0));
        let successor = spec(&claimed("fleet", Some(&first), "b", at(30)));
        assert_eq!(
            (successor.acquire_time, successor.lease_transitions),
            (Some(MicroTime(at(30))), Some(1))
        );
    }

    #[test]
    fn its_holder_stops_before_another_one_can_begin() {
        // A renewal may take half of HOLDS, and the other one's look comes RENEW after the Lease's end at the earliest.
        assert!(HOLDS < Duration::from_secs(LEASE_S.unsigned_abs().into()));
        assert!(RENEW + HOLDS / 2 < HOLDS);
    }
}
