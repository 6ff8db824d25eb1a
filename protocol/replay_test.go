package protocol

import "testing"

// BenchmarkReplay decodes and folds a history of consecutive execs; one op is one event.
func BenchmarkReplay(b *testing.B) {
	s := stateAfter(b, situations["ready with no exec"])
	var messages [][]byte
	for _, kind := range []Kind{ExecAccepted, ExecStarted, ExecFinished} {
		e := eventFor(s, kind)
		if err := s.Apply(e); err != nil {
			b.Fatal(err)
		}
		messages = append(messages, batchOf(*e).Encode())
	}
	b.ReportAllocs()
	start := stateAfter(b, situations["ready with no exec"])
	for i := 0; b.Loop(); i++ {
		if i%3 == 0 {
			s = start.Clone()
		}
		batch, err := DecodeBatch(messages[i%3], 1)
		if err == nil {
			err = s.Apply(&batch.Events[0])
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
