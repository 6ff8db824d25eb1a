package firewall

import "github.com/boxfleet/boxfleet/protocol"

// never are the ranges that no sandbox reaches, even if its policy allows them.
var never = protocol.NeverReached()

// private are the ranges outside of the internet. A sandbox reaches them only if both its policy and the host's
// operator allow it.
var private = protocol.PrivateRanges()
