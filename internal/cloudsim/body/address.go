package body

import (
	"fmt"
	"os"
	"sync/atomic"
)

var machines atomic.Uint32

// LoopbackAddress is an address of this computer's that no machine of this process has had: one for each of the first
// 62,500, after which they come again. Several programs begin at different places.
func LoopbackAddress() string {
	const inPart = 250
	n := machines.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()%128, n/inPart%inPart, n%inPart+1)
}
