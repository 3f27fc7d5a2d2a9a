// Package hostid names the place where two processes can hand each other shared memory: one kernel and one network
// namespace, which is what an abstract Unix socket reaches. Workers publish the name, readers compare it with their own.
package hostid

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

const (
	bootPath      = "/proc/sys/kernel/random/boot_id"
	namespacePath = "/proc/self/ns/net"
)

// Get names this process's kernel and network namespace. Equal ids mean that abstract Unix sockets connect; an id is
// new after every boot. The parts are hashed, so that the id tells nothing of the host to those who only read it.
func Get() (string, error) {
	boot, err := os.ReadFile(bootPath)
	if err != nil {
		return "", fmt.Errorf("name this host by its boot: %w", err)
	}
	namespace, err := os.Readlink(namespacePath)
	if err != nil {
		return "", fmt.Errorf("name this host by its network namespace: %w", err)
	}
	return join(string(boot), namespace)
}

func join(boot, namespace string) (string, error) {
	boot, namespace = strings.TrimSpace(boot), strings.TrimSpace(namespace)
	if boot == "" || namespace == "" {
		return "", errors.New("name this host: the kernel gave an empty boot id or network namespace")
	}
	sum := sha256.Sum256([]byte(boot + "\n" + namespace))
	return hex.EncodeToString(sum[:12]), nil
}
