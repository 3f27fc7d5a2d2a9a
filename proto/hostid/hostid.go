// Package hostid identifies a kernel and network namespace. Two processes with the same id can connect by an abstract Unix socket, and
// therefore share memory. Workers publish their id; clients compare it with their own.
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

// Get returns the id of this process's kernel and network namespace. It changes with every boot. The parts are hashed, so that the id
// reveals nothing about the host.
func Get() (string, error) {
	boot, err := os.ReadFile(bootPath)
	if err != nil {
		return "", fmt.Errorf("identify this host by its boot id: %w", err)
	}
	namespace, err := os.Readlink(namespacePath)
	if err != nil {
		return "", fmt.Errorf("identify this host by its network namespace: %w", err)
	}
	return join(string(boot), namespace)
}

func join(boot, namespace string) (string, error) {
	boot, namespace = strings.TrimSpace(boot), strings.TrimSpace(namespace)
	if boot == "" || namespace == "" {
		return "", errors.New("identify this host: the kernel returned an empty boot id or network namespace")
	}
	sum := sha256.Sum256([]byte(boot + "\n" + namespace))
	return hex.EncodeToString(sum[:12]), nil
}
