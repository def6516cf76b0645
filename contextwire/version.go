package contextwire

// ProtocolVersion is the wire protocol that this package speaks, as in the
// header apbus-version and in the subjects. A change that an older peer can
// ignore keeps the number and gets a line; one that it cannot ignore raises it.
//
//	2026-11-30  1  first version: requests, frames, control, catalogue
//	2026-11-30  1  accept frames may carry apbus-grace-ms
//	2026-11-30  1  a probe may name calls, its answer those no longer waited for
//	2026-11-30  1  frames of kind trace
//	2026-11-30  1  a node record may say named_only
const ProtocolVersion = 1

// versionText is the value of apbus-version.
const versionText = "1"

// ContextVersion is written as _context_version. A higher one is read as far as
// it is understood.
const ContextVersion = 1
