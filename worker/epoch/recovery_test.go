package epoch

import "testing"

func TestARecoveryEndsThePausesThatBeganBeforeIt(t *testing.T) {
	var r Recovery
	before := r.Next()
	r.Happened() // after the call of Next, but before the pause begins
	select {
	case <-before:
	default:
		t.Error("a recovery does not end the pause of a try that began before the recovery")
	}
	select {
	case <-r.Next():
		t.Error("a recovery ends the pause of a try that began after the recovery")
	default:
	}
}
