//! Publication of status, events and errors.

use std::collections::BTreeMap;

use pw_alloc::model::{GuestId, VfId};
use pw_error::Error;

use super::Core;
use crate::daemon::request::Event;
use crate::daemon::status::{self, ErrorRecord, MoveRecord, unix_ms};

/// Time after which an error that comes back is a new one: longer than any pause between attempts.
const AWAY_MS: u64 = 660_000;

impl Core {
    pub(super) fn record_move(&mut self, record: &MoveRecord, event: fn(MoveRecord) -> Event) {
        self.status.record_move(record.clone());
        self.ends.emit(event(record.clone()));
    }

    pub(super) fn report_error(
        &mut self,
        error: &Error,
        guest: Option<&GuestId>,
        vf: Option<&VfId>,
    ) {
        tracing::error!("{error}");
        let record = ErrorRecord {
            at_unix_ms: unix_ms(),
            what: error.what.clone(),
            remedy: error.remedy.clone(),
            guest: guest.cloned(),
            vf: vf.cloned(),
        };
        self.status.record_error(record.clone());
        self.ends.emit(Event::Error(record));
    }

    /// Reports a lasting error once, and again when it returns after `AWAY_MS`.
    pub(super) fn report_once(&mut self, error: &Error) {
        if self.is_new(&error.what) {
            self.report_error(error, None, None);
        }
    }

    /// Has this error not occurred for `AWAY_MS`? The map is cleared before it grows without bound.
    pub(super) fn is_new(&mut self, what: &str) -> bool {
        if self.reported.len() > 1000 {
            self.reported.clear();
        }
        let last_ms = self.reported.insert(what.to_owned(), self.now_ms);
        last_ms.is_none_or(|last_ms| self.now_ms.saturating_sub(last_ms) >= AWAY_MS)
    }

    pub(super) fn publish(&mut self) {
        let ledger = self.journal.ledger();
        let held: BTreeMap<&GuestId, &VfId> =
            ledger.holders.iter().map(|(vf, guest)| (guest, vf)).collect();
        let signal = &self.allocator.settings().signal;
        self.status.at_unix_ms = unix_ms();
        self.status.guests = self
            .guests
            .iter()
            .map(|(id, guest)| {
                let wish = self.wish(id, &guest.managed);
                status::Guest {
                    id: id.clone(),
                    kind: self.host.kinds[guest.kind].kind(),
                    mac: Some(guest.managed.mac),
                    vf: held.get(id).map(|vf| (*vf).clone()),
                    since_unix_ms: guest.since_unix_ms,
                    why: guest.why.clone(),
                    rate: guest.tracker.rate(self.now_ms, signal).into(),
                    stance: wish.stance,
                    class: wish.class,
                    moving: self.is_guest_under_way(id),
                    paravirtual_up: guest.managed.paravirtual_up,
                    marked: ledger.marked.get(id).cloned(),
                }
            })
            .collect();
        self.status.vfs = self
            .view
            .vfs
            .keys()
            .map(|id| {
                let under_way = self.active.values().find_map(|active| active.gives(id));
                let holder = ledger.holders.get(id).or(under_way).cloned();
                let why =
                    ledger.quarantined.get(id).cloned().or_else(|| self.unavailable_reason(id));
                let place = match (&holder, &why) {
                    (_, Some(_)) => status::VfState::Quarantined,
                    (Some(_), None) => status::VfState::Held,
                    (None, None) => status::VfState::Pool,
                };
                status::Vf { id: id.clone(), place, holder, why }
            })
            .collect();
        self.status.pools = self
            .view
            .pfs
            .iter()
            .map(|(id, pf)| {
                let count = |place: Option<status::VfState>| {
                    let of = self.status.vfs.iter().filter(|vf| {
                        vf.id.pf == *id && place.is_none_or(|place| vf.place == place)
                    });
                    u32::try_from(of.count()).unwrap_or(u32::MAX)
                };
                status::Pool {
                    pf: id.clone(),
                    vfs: count(None),
                    free: count(Some(status::VfState::Pool)),
                    quarantined: count(Some(status::VfState::Quarantined)),
                    link_up: pf.link_up,
                    numa: pf.numa,
                }
            })
            .collect();
        self.ends.publish(self.status.clone());
    }
}
