package protocol

import "testing"

func TestAConstraintIsMetByLabels(t *testing.T) {
	labels := map[string]string{"zone": "b", "disk": "ssd", "empty": "", "origin": "made in x"}
	for text, why := range map[string]string{
		"zone=b": "", "zone = b": "", "zone!=a": "", "other!=x": "", "zone in (a,b)": "", "zone in ( b )": "", "empty=": "",
		"origin=made in x": "", "origin != made in y": "",
		"zone=a":                "label zone is b, wanted a",
		"zone!=b":               "label zone is b, wanted anything except b",
		"disk in (hdd, nvme)":   "label disk is ssd, wanted hdd or nvme",
		"gpu=yes":               "label gpu is not set, wanted yes",
		"example.com/rack in 7": "refused", "zone": "refused", "zone!=a,disk!=hdd": "refused", "zone=b, disk=ssd": "refused",
		"zone==b": "label zone is b, wanted =b",
	} {
		c, err := ParseConstraint(text)
		if err != nil {
			if why != "refused" {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		if got := c.Unmet(labels); got != why {
			t.Errorf("%q: want %q, got %q", text, why, got)
		}
	}
}
