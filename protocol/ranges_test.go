package protocol

import "testing"

func TestS24_AForbiddenRangeIsRejectedByField(t *testing.T) {
	for _, r := range []string{"169.254.169.254/32", "127.0.0.0/8", "100.100.100.200/32", "168.63.129.16/32",
		"224.0.0.0/24", "0.0.0.0/8"} {
		s := goodSandbox()
		s.Network = &Network{Mode: NetworkAllow, Allow: []string{"10.0.0.0/8", r}}
		wantError(t, s.Validate(), PermissionDenied, ReasonPolicyDenied, "spec.network.allow[1]")
	}
	for _, r := range []string{"0.0.0.0/0", "100.100.100.0/24",
		"168.63.129.0/24"} { // except the parts that are never reachable
		s := goodSandbox()
		s.Network = &Network{Mode: NetworkAllow, Allow: []string{r}}
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", r, err)
		}
	}
}
