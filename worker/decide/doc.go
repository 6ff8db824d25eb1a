// Package decide is what a worker decides, without the host, the engine, a clock or the log.
//
//	state of the log + inspection of the host ──► Next ──► one operation        step.go
//	state of the log + what the worker did    ──► Ready, Stopped, ExecEnd, …   sandbox.go, exec.go, service.go
//	                                               └─► events to append
//	what a supervisor reports of a command    ──► PrimaryRun, CrashLoop        primary.go, crashloop.go
//
// The functions that return events are asked with the newest state of the log. They return none where the log moved
// on and the news no longer applies. Each has a scenario in testdata.
//
// The package imports protocol, supervisor/control, and worker/progress.
package decide
