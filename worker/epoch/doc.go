// Package epoch knows whether the engine may have been replaced or restarted, and tells waiting retries when it is
// back.
//
//	engine's event stream ──► Epoch     did a container end by itself, or with its engine?
//	engine or NATS is back ──► Recovery  retry now, and not only after the pause
//
// The package imports protocol.
package epoch
