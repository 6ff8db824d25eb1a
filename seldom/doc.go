// Package seldom keeps a log short while a problem persists, affects many things at once, or is provoked by a sandbox
// again and again. It passes a repeated line on only from time to time, with a count of the lines that it left out.
//
//	slog.Logger ── Handler ── any slog.Handler
//	               same line: after 1, 2, 4 … 10 minutes
//	               same message and sandbox: 6 a minute
//	               same message: 20 a minute
//
// Workers, coordinators and supervisors wrap their log handler in a [Handler]. The package imports nothing of this
// module.
package seldom
