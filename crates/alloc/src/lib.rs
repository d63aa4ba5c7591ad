//! Allocation of virtual functions to guests. From observations it makes a plan: ordered steps that
//! can be printed and journalled. Time comes with the observations, and the caller performs the
//! steps (docs/concepts/allocation.md).

pub mod allocator;
mod draft;
pub mod evidence;
pub mod execute;
pub mod gain;
pub mod history;
pub mod journal;
mod matching;
pub mod model;
mod optimum;
pub mod patience;
pub mod plan;
pub mod policy;
mod quiet;
pub mod recording;
pub mod recover;
pub mod replay;
pub mod settings;
pub mod signal;
pub mod simulate;
pub mod step;
pub mod traffic;
pub mod world;

pub use allocator::Allocator;
pub use model::{GuestId, GuestView, Mac, PfId, Snapshot, VfId, VfView};
pub use plan::{Decision, Move, Plan};
pub use settings::Settings;
pub use step::Step;
