package firewall

import "github.com/boxfleet/boxfleet/protocol"

// never is the list of ranges that no sandbox reaches, even if its policy allows them.
var never = protocol.NeverReached()

// private is the list of ranges that are not part of the internet. A sandbox reaches such a range only if its policy
// and the host's operator both allow the range.
var private = protocol.PrivateRanges()
