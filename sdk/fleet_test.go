package sdk_test

import (
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/boxfleet/boxfleet/integration/fleet"
	"github.com/boxfleet/boxfleet/protocol"
)

func TestMain(m *testing.M) {
	// Many tests wait for a coordinator, an outage or an engine. On small machines they therefore finish sooner with more
	// parallel tests than cores. The flag -parallel overrides this number.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	fleet.Main(m)
}

// These tests share one fleet and run one after another. Each creates its own sandboxes.
func TestAgainstAFleet(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{})
	for name, test := range map[string]func(*testing.T, *fleet.Fleet){
		"AnExecIsReachedByItsID":                anExecIsReachedByItsID,
		"ArgumentsAreRefusedByTheirField":       argumentsAreRefusedByTheirField,
		"AnIDThatWasUsedIsNamedAsTheField":      anIDThatWasUsedIsNamedAsTheField,
		"TheRawHistoryIsFoundByName":            theRawHistoryIsFoundByName,
		"ExecsEndAsTheirCommandsDo":             execsEndAsTheirCommandsDo,
		"OutputIsCompleteHoweverItIsRead":       outputIsCompleteHoweverItIsRead,
		"ALineOfOutputIsWaitedFor":              aLineOfOutputIsWaitedFor,
		"ALineOfAServiceIsWaitedFor":            aLineOfAServiceIsWaitedFor,
		"AnExecCanBeWaitedForAgain":             anExecCanBeWaitedForAgain,
		"ALoopOverOutputCanBeLeftEarly":         aLoopOverOutputCanBeLeftEarly,
		"ParallelExecsGetTheirOwnResults":       parallelExecsGetTheirOwnResults,
		"AFailingWriterEndsTheCallNotTheExec":   aFailingWriterEndsTheCallNotTheExec,
		"CodeRunsFromStdin":                     codeRunsFromStdin,
		"ARepeatedRequestFindsWhatTheFirstDid":  aRepeatedRequestFindsWhatTheFirstDid,
		"ANameFindsItsSandbox":                  aNameFindsItsSandbox,
		"ACommandHasTheShapeOfOSExec":           aCommandHasTheShapeOfOSExec,
		"ACommandEndsWithItsContext":            aCommandEndsWithItsContext,
		"EnsureFindsResumesOrCreates":           ensureFindsResumesOrCreates,
		"EnsureReturnsWhyItsSandboxFailed":      ensureReturnsWhyItsSandboxFailed,
		"ClientsThatEnsureAtOnceGetOneSandbox":  clientsThatEnsureAtOnceGetOneSandbox,
		"ARepeatedStopDoesNotStopAgain":         aRepeatedStopDoesNotStopAgain,
		"ChangesAreIdempotentAndWaitedFor":      changesAreIdempotentAndWaitedFor,
		"AWaitForReadyReturnsTheFailure":        aWaitForReadyReturnsTheFailure,
		"ListsHavePagesAndSelectors":            listsHavePagesAndSelectors,
		"EventsReplayAndFollowInOneSequence":    eventsReplayAndFollowInOneSequence,
		"WaitsDoNotReadPastHistory":             waitsDoNotReadPastHistory,
		"ASlowFollowerMissesNothing":            aSlowFollowerMissesNothing,
		"EventsOutOfRangeAreRefused":            eventsOutOfRangeAreRefused,
		"UploadsKeepTrees":                      uploadsKeepTrees,
		"AnExecThatEndsDuringAnOutageIsNoticed": anExecThatEndsDuringAnOutageIsNoticed,
		"PagesEqualTheStreams":                  pagesEqualTheStreams,
	} {
		t.Run(name, func(t *testing.T) { test(t, f) })
	}
}

// wantError checks that err is an *Error with this code and, unless reason is empty, this reason.
func wantError(t *testing.T, err error, code protocol.Code, reason string) {
	t.Helper()
	var typed *protocol.Error
	if !errors.As(err, &typed) || typed.Code != code || reason != "" && typed.Reason != reason {
		t.Errorf("got %v, want %s (%s)", err, code, reason)
	}
}

func command(argv ...string) protocol.ExecSpec { return protocol.ExecSpec{Command: argv} }

func shell(script string) protocol.ExecSpec { return command("sh", "-c", script) }

// within fails the test if f takes longer than limit.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	started := time.Now()
	f()
	if took := time.Since(started); took > limit {
		t.Errorf("%s took %s, want at most %s", what, took, limit)
	}
}
