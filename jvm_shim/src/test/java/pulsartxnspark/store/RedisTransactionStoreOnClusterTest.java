package pulsartxnspark.store;

@OnCluster
class RedisTransactionStoreOnClusterTest extends RedisTransactionStoreTest {}
