// Package decide makes the decisions of a worker. It has no access to the host, the engine, a clock or the log.
//
//	state of the log + inspection of the host ──► Next ──► one operation        step.go
//	state of the log + what the worker did    ──► Ready, Stopped, ExecEnd, …   sandbox.go, exec.go, service.go
//	                                               └─► events to append
//	reports of a supervisor on a command      ──► PrimaryRun, CrashLoop        primary.go, crashloop.go
//
// The functions that return events are called with the newest state of the log. They return no events if the state has
// changed since the decision was planned, and the events no longer fit. Each of these functions has a scenario in
// testdata.
//
// The package imports protocol, supervisor/control, and worker/progress.
package decide
