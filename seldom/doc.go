// Package seldom makes a log that can be left alone: what goes on for long, or happens to many things at
// once, or is provoked by a sandbox again and again, is said from time to time, with a count of what was
// left out.
//
//	slog.Logger ── Handler ── any slog.Handler
//	               same line: after 1, 2, 4 … 10 minutes
//	               same message and sandbox: 6 a minute
//	               same message: 20 a minute
//
// Workers, coordinators and supervisors put it around the logger that they are given. It imports nothing of
// this module.
package seldom
