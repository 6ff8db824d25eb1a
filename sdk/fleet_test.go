package sdk_test

import (
	"errors"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestMain(m *testing.M) { fleet.Main(m) }

// The tests of one fleet run one after another on it, and each makes its own sandboxes.
func TestAgainstAFleet(t *testing.T) {
	f := fleet.Start(t, fleet.Options{})
	for name, test := range map[string]func(*testing.T, *fleet.Fleet){
		"ExecsEndAsTheirCommandsDo":              execsEndAsTheirCommandsDo,
		"OutputArrivesWholeInEveryWay":           outputArrivesWholeInEveryWay,
		"AWaitMayEndAndBeginAgain":               aWaitMayEndAndBeginAgain,
		"ALoopOverOutputMayBeLeftAtOnce":         aLoopOverOutputMayBeLeftAtOnce,
		"ParallelExecsSeeTheirOwnResults":        parallelExecsSeeTheirOwnResults,
		"AFailingWriterEndsTheCallNotTheExec":    aFailingWriterEndsTheCallNotTheExec,
		"CodeRunsFromStdin":                      codeRunsFromStdin,
		"ARepeatedRequestFindsItsOwn":            aRepeatedRequestFindsItsOwn,
		"ANameFindsItsSandbox":                   aNameFindsItsSandbox,
		"ARepeatedStopStopsNothingLater":         aRepeatedStopStopsNothingLater,
		"ChangesAreIdempotentAndWaitedFor":       changesAreIdempotentAndWaitedFor,
		"AWaitForReadyEndsWithTheFailure":        aWaitForReadyEndsWithTheFailure,
		"ListsHavePagesAndSelectors":             listsHavePagesAndSelectors,
		"EventsReplayAndFollowInOneSequence":     eventsReplayAndFollowInOneSequence,
		"WaitsReadNoHistory":                     waitsReadNoHistory,
		"ASlowFollowerMissesNothing":             aSlowFollowerMissesNothing,
		"EventsOutOfRangeAreTold":                eventsOutOfRangeAreTold,
		"TreesArriveAsTheyWere":                  treesArriveAsTheyWere,
		"AnExecThatEndsWhileNATSIsAwayIsHeardOf": anExecThatEndsWhileNATSIsAwayIsHeardOf,
		"AServiceIsHeardToItsLastWord":           aServiceIsHeardToItsLastWord,
		"PagesHaveWhatTheStreamsHave":            pagesHaveWhatTheStreamsHave,
	} {
		t.Run(name, func(t *testing.T) { test(t, f) })
	}
}

// wantError checks the code and the reason of an error, which must be typed.
func wantError(t *testing.T, err error, code protocol.Code, reason string) {
	t.Helper()
	var typed *protocol.Error
	if !errors.As(err, &typed) || typed.Code != code || reason != "" && typed.Reason != reason {
		t.Errorf("want %s (%s), got %v", code, reason, err)
	}
}

func command(argv ...string) protocol.ExecSpec { return protocol.ExecSpec{Command: argv} }

func shell(script string) protocol.ExecSpec { return command("sh", "-c", script) }

// within fails the test when what it measures took longer.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	started := time.Now()
	f()
	if took := time.Since(started); took > limit {
		t.Errorf("%s took %s, at most %s is right", what, took, limit)
	}
}
