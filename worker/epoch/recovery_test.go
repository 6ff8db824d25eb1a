package epoch

import "testing"

func TestARecoveryEndsThePausesThatBeganBeforeIt(t *testing.T) {
	var r Recovery
	before := r.Next()
	r.Happened() // also between a try and its pause
	select {
	case <-before:
	default:
		t.Error("a pause does not end with the recovery")
	}
	select {
	case <-r.Next():
		t.Error("an earlier recovery ends a pause")
	default:
	}
}
